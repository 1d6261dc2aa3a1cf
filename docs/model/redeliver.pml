/*
 * At least once: a payload stays until the stage has completed it, also if a
 * process dies, and the result of a repeat is delivered once.
 *
 * A producer node sends WORKS payloads to a stage; the stage handles each, sends
 * the result to the next stage, then says that it has completed the payload.
 * The stage dies at any step, up to DEATHS times, and is started again. The
 * producer holds a debt of its own for each payload until the completion, so
 * that it can deliver it once more; the stage's own debt goes when it has
 * released its lease, or is dead. A repeat carries the same sequence and a
 * higher attempt, and the consumer of the results takes each sequence once.
 *
 * small: -DWORKS=2 -DDEATHS=1
 * full:  -DWORKS=3 -DDEATHS=2
 *
 * MUT 1 the producer releases when it has sent              -> payload_intact
 * MUT 2 the producer releases when the stage has released   -> payload_intact
 * MUT 3 the stage says completed before its result is sent  -> every_result_arrives
 * MUT 4 a duplicate is not removed                          -> each_result_once
 * MUT 5 the producer does not release after a completion    -> room_comes_back
 * MUT 6 no payload is delivered again                       -> every_result_arrives
 * MUT 7 a repeat gets the next sequence                     -> every_result_arrives
 * MUT 8 a late completion ends the debt of the repeat too  -> payload_intact
 */
#include "model.h"

#ifndef WORKS
#define WORKS 2
#endif
#ifndef DEATHS
#define DEATHS 1
#endif

mtype = { payload_intact, every_result_arrives, each_result_once, room_comes_back };

#define SLOTS (WORKS + 1)       /* slot w is for work w; slot 0 is not used */

bool bytes[SLOTS];              /* the payload is there */
bool own[SLOTS];                /* the producer's own debt */
bool held[SLOTS];               /* the stage's debt: see ledger.pml */
bool completed[SLOTS];

/* Work and, for results, the sequence. Results in the lane of a dead stage are
 * still consumed; the lane into it dies with it. */
chan toStage = [WORKS] of { byte, byte };
chan results = [WORKS * (DEATHS + 1)] of { byte, byte };
chan completions = [WORKS * (DEATHS + 1)] of { byte };

bool dead;                      /* the stage is killed */
bool reaped;                    /* and it is gone: its pidfd is readable */
byte received[SLOTS];

inline deliver(w) {
	bytes[w] = true;
#if MUT != 1
	own[w] = true;
#endif
	held[w] = true;
	toStage!w,w
}

/* The pidfd is readable: its debts are forgotten, a new process gets the payloads
 * that were not completed. */
inline start_again() {
	d_step {
		for (w : 1 .. WORKS) { held[w] = false };
		do :: nempty(toStage) -> toStage?_,_ :: empty(toStage) -> break od;
		lives++
	}
	w = 1;
	do
	:: w < next && !completed[w] ->
#if MUT != 6
		held[w] = true;
#if MUT == 7
		toStage!w,w + lives * WORKS;
#else
		toStage!w,w;
#endif
#endif
		w++
	:: w < next && completed[w] -> w++
	:: w == next -> break
	od;
	w = 0;
	d_step { dead = false; reaped = false }
	run Stage()
}

#if MUT == 2
#define mayFree(w) (bytes[w] && !held[w] && w < next)
#else
#define mayFree(w) (bytes[w] && !held[w] && !own[w] && w < next)
#endif

proctype Producer() {
	byte next = 1, w, lives;
end:	do
	:: next <= WORKS && !dead -> deliver(next); next++
	:: completions?w ->
#if MUT != 5
		own[w] = false;
#endif
#if MUT == 8
		held[w] = false;
#endif
		completed[w] = true;
		w = 0
	:: mayFree(1) -> bytes[1] = false
	:: mayFree(2) -> bytes[2] = false
#if WORKS > 2
	:: mayFree(3) -> bytes[3] = false
#endif
	:: reaped -> start_again()
	od
}

proctype Stage() {
	byte w, seq;
	{
end:	do
	:: toStage?w,seq ->
		CHECK(payload_intact, bytes[w]);    /* when it begins */
		CHECK(payload_intact, bytes[w]);    /* and when it ends */
#if MUT == 3
		completions!w;
#endif
		if
		:: held[w] = false; results!w,seq
		:: results!w,seq; held[w] = false
		fi;
#if MUT != 3
		completions!w;
#endif
		d_step { w = 0; seq = 0 }
	od
	} unless { dead };
	reaped = true
}

proctype Consumer() {
	byte expected = 1, w, seq;
end:	do
	:: results?w,seq ->
#if MUT != 4
		CHECK(every_result_arrives, seq <= expected);
		if
		:: seq == expected -> expected++; received[w]++
		:: seq < expected                   /* a repeat */
		fi;
#else
		received[w]++;
#endif
		CHECK(each_result_once, received[w] == 1);
		d_step { w = 0; seq = 0 }
	od
}

proctype Death() {
	byte deaths;
	do
	:: deaths < DEATHS && !dead -> deaths++; dead = true
	:: break
	od
}

proctype Watch() {
	byte w;
end:	timeout -> atomic {
		for (w : 1 .. WORKS) {
			CHECK(every_result_arrives, received[w] > 0);
			CHECK(each_result_once, received[w] == 1);
			CHECK(room_comes_back, !bytes[w])
		}
	}
}

init {
	atomic { run Producer(); run Consumer(); run Death(); run Watch(); run Stage() }
}
