/*
 * Waking: no process sleeps while there is work for it.
 *
 * One node sends FRAMES objects to CONSUMERS others, by a lane of one frame
 * each; its store has space for OBJECTS. So it waits for space in the store (done
 * moves), and the consumers wait for frames (a header is stored). For space in a
 * lane (a head moves) it does not sleep: it sends later. Every wait is the same
 * four steps: raise the flag, fence, check again, park. Every store that could end
 * a wait is followed by a fence and a load of the flag; a process that finds it
 * raised writes the eventfd. Parking on an eventfd returns at once if it was
 * written before. In a lane flags are counters, odd while raised, and each number
 * is answered once; COUNTED models that, and multiplies the states.
 *
 * A header of 1, formerly 0, publishes a frame. The header after it is cleared
 * first, because an earlier frame lay there.
 *
 * Memory is that of amd64: each node's stores wait in a buffer of its own, in
 * order, and reach the others some time after. A fence waits until the buffer
 * is empty. One node writes each location, and sees its own stores. Up to DEATHS
 * consumers die at any step.
 *
 * small: -DFRAMES=3
 * small: -DFRAMES=3 -DNP
 * small: -DFRAMES=2 -DCOUNTED=1
 * full:  -DFRAMES=8
 * full:  -DFRAMES=4 -DCOUNTED=1
 * full:  -DFRAMES=2 -DOBJECTS=1 -DCONSUMERS=2
 *
 * MUT 1  a consumer checks first, then raises its flag        -> frames_are_taken
 * MUT 2  the sender does not load the flag after a header     -> frames_are_taken
 * MUT 3  no fence between a consumer's flag and its check     -> frames_are_taken
 * MUT 4  no fence between a header and the load of the flag   -> frames_are_taken
 * MUT 5  the owner checks first, then raises wantRoom         -> room_is_used
 * MUT 6  a reader does not load wantRoom after its done       -> room_is_used
 * MUT 7  no fence between done and the load of wantRoom       -> room_is_used
 * MUT 8  a death wakes no process                             -> a_death_wakes
 * MUT 9  a woken process clears the eventfd after its check   -> frames_are_taken
 * MUT 10 a header is stored before its frame                  -> frames_in_order
 * MUT 11 the sender does not load the head before a frame     -> frames_in_order
 * MUT 12 a consumer polls instead of parking                  -> no_idle_cycle
 * MUT 13 a consumer's next sleep has the number of the last   -> frames_are_taken
 * MUT 14 the header after a frame is not cleared              -> frames_in_order
 * MUT 15 the next header is cleared after the frame is out    -> frames_in_order
 */
#include "model.h"

#ifndef FRAMES
#define FRAMES 3
#endif
#ifndef CONSUMERS
#define CONSUMERS 1
#endif
#ifndef DEATHS
#define DEATHS 1
#endif
#ifndef COUNTED
#define COUNTED (MUT == 13) /* 0: flags are 0 and 1, and answered whenever they are seen */
#endif
#ifndef OBJECTS
#define OBJECTS 2  /* for which the store has space; a lane holds one frame */
#endif

mtype = { frames_are_taken, room_is_used, a_death_wakes, frames_in_order };

/* Locations, as all other nodes see them. The sender writes these: */
#define HEADER(c, n) (3 * (c) + (n) % 2) /* of frame n; 1 if it is there */
#define FRAME(c)     (3 * (c) + 2)       /* the last frame */
#define WANTROOM     (3 * CONSUMERS)
/* Consumer c writes these: */
#define ASLEEP(c)    (3 * CONSUMERS + 1 + 3 * (c))
#define HEAD(c)      (3 * CONSUMERS + 2 + 3 * (c))
#define DONE(c)      (3 * CONSUMERS + 3 + 3 * (c))
byte seen[6 * CONSUMERS + 1];
#define isThere(c, n) (seen[HEADER(c, n)] == 1)

/* Node 0 is the sender, node c+1 is consumer c. */
#define NODES (CONSUMERS + 1)
chan late[NODES] = [4] of { byte, byte };
bool eventfd[NODES];
bool dead[CONSUMERS];   /* the kernel knows it */
bool gone[CONSUMERS];   /* the sender knows it */

inline store(node, place, value) { late[node]!place,value }
inline fence(node) { empty(late[node]) }

/* The buffer of a node; it drains even after the node has died. */
proctype Drain(byte node) {
	byte place, value;
end:	do
	:: d_step { late[node]?place,value -> seen[place] = value; place = 0; value = 0 }
	od
}

#if COUNTED
#define count(sleeps) sleeps++
#else
#define count(sleeps) sleeps = 1 - sleeps
#endif

/* Wakes a node if it sleeps, once for each of its sleeps. */
inline answer(node, flag, answered) {
	d_step {
		number = seen[flag];
		wake = number % 2 == 1 && (!COUNTED || number != answered);
		if :: wake && COUNTED -> answered = number :: else fi;
		number = 0
	}
	if :: wake -> wake = false; eventfd[node] = true :: else fi
}

/* The condition for which each node is parked: for the promises alone. */
mtype = { nothing, room };
mtype waitsFor = nothing;
byte waitsOn;

inline park(node) { d_step { eventfd[node] -> eventfd[node] = false } }

/* If the eventfd is cleared after the wait and before the check, no write is
 * lost; if it is cleared before the wait, one may be. */
#if MUT == 9
#define beforePark(node) eventfd[node] = false
#else
#define beforePark(node) skip
#endif

#define hasSpace(c) (gone[c] || sent - seen[HEAD(c)] < 1)
#define hasRoom(c)  (gone[c] || sent - seen[DONE(c)] < OBJECTS)

inline await_room(c) {
	do
	:: hasRoom(c) -> break
	:: else ->
		store(0, WANTROOM, 1);
		fence(0);
		if
#if MUT != 5
		:: hasRoom(c) -> skip
#endif
		:: else -> d_step { waitsFor = room; waitsOn = c }; park(0); waitsFor = nothing
		fi;
		store(0, WANTROOM, 0)
	od
}

proctype Sender() {
	byte sent, c, answered[CONSUMERS], number;
	bool wake;
	do
	:: sent == FRAMES -> break
	:: else ->
		for (c : 0 .. CONSUMERS - 1) { await_room(c) }
		for (c : 0 .. CONSUMERS - 1) {
#if MUT != 11
			hasSpace(c);
#endif
#if MUT != 10
			store(0, FRAME(c), sent + 1);
#endif
#if MUT != 14 && MUT != 15
			store(0, HEADER(c, sent + 1), 0);
#endif
			store(0, HEADER(c, sent), 1);
#if MUT == 10
			store(0, FRAME(c), sent + 1);
#elif MUT == 15
			store(0, HEADER(c, sent + 1), 0);
#endif
#if MUT != 4
			fence(0);
#endif
#if MUT != 2
			answer(c + 1, ASLEEP(c), answered[c])
#endif
		}
		c = 0;
		sent++
	od
}

inline advance_head(c) { store(c + 1, HEAD(c), taken) }

inline release(c) {
	store(c + 1, DONE(c), taken);
#if MUT != 7
	fence(c + 1);
#endif
#if MUT != 6
	if :: seen[WANTROOM] == 1 -> eventfd[0] = true :: else fi
#endif
}

proctype Consumer(byte c) {
	byte taken, sleeps;
	{
end:	do
	:: taken == FRAMES -> break
	:: taken < FRAMES && isThere(c, taken) ->
		taken++;
		CHECK(frames_in_order, seen[FRAME(c)] == taken);
		if
		:: advance_head(c); release(c)
		:: release(c); advance_head(c) /* heads may lag behind */
		fi
	:: taken < FRAMES && !isThere(c, taken) ->
		count(sleeps);
		store(c + 1, ASLEEP(c), sleeps);
#if MUT != 3
		fence(c + 1);
#endif
		if
#if MUT != 1
		:: isThere(c, taken) -> skip
#endif
#if MUT == 12
		:: else -> skip
#else
		:: else -> beforePark(c + 1); park(c + 1)
#endif
		fi;
#if MUT == 13
		sleeps--;
#else
		count(sleeps);
#endif
		store(c + 1, ASLEEP(c), sleeps)
	od
	} unless { dead[c] }
}

#if MUT == 8
#define wake_the_sender() skip
#else
#define wake_the_sender() eventfd[0] = true
#endif

/* The pidfd of each consumer is watched in the sender's process. */
proctype Pidfds() {
end:	do
	:: dead[0] && !gone[0] -> gone[0] = true; wake_the_sender()
#if CONSUMERS > 1
	:: dead[1] && !gone[1] -> gone[1] = true; wake_the_sender()
#endif
	od
}

proctype Death() {
	byte deaths;
	do
	:: deaths < DEATHS ->
		deaths++;
		if
		:: !dead[0] -> dead[0] = true
#if CONSUMERS > 1
		:: !dead[1] -> dead[1] = true
#endif
		fi
	:: break
	od
}

#define taken_by(c) (dead[c] || !isThere(c, seen[HEAD(c)]))

proctype Watch() {
end:	timeout -> atomic {
		CHECK(frames_are_taken, taken_by(0) && taken_by(CONSUMERS - 1));
		CHECK(a_death_wakes, waitsFor == nothing || !dead[waitsOn]);
		CHECK(room_is_used, waitsFor != room)
	}
}

init {
	byte i;
	atomic {
		for (i : 0 .. NODES - 1) { run Drain(i) }
		for (i : 0 .. CONSUMERS - 1) { run Consumer(i) }
		run Sender(); run Pidfds(); run Death(); run Watch()
	}
}
