/*
 * When does a request get a slot, and does every request end?
 *
 * REQUESTS requests go through a graph: a | b -> merge, whose stages have one slot each. The
 * producer in front of a request sends to a, to b, to both in either order or at once, or to neither.
 * a and b forward their deliveries. A request takes a slot for its first delivery to a stage. An end takes
 * none: the stage is told of it when the request has a slot there, and a stage without deliveries is passed over.
 * ABORTS requests are over at some step. A straggler asks for a slot of a stage that its request has left.
 *
 * small: -DREQUESTS=2
 * full:  -DREQUESTS=3 -DABORTS=0
 *
 * MUT 1 the search for cycles runs only when a wait begins        -> every_request_ends
 * MUT 2 a node opens no task above the bound                      -> every_request_ends
 * MUT 3 two requests are served by one actor                      -> every_request_ends
 * MUT 4 a straggler takes a slot of a stage that was left         -> every_request_ends
 * MUT 5 no search for cycles when a slot above the bound is back  -> every_request_ends
 * MUT 6 the youngest request gets the free slot                   -> oldest_first
 * MUT 7 a request that holds the slot of a later stage never waits -> bound_is_kept
 * MUT 8 an end is noted some time after the check for a slot      -> every_request_ends
 * MUT 9 an ended request keeps a slot of which no part was told   -> slots_come_back
 * MUT 10 an end takes a slot                                      -> own_stages_only
 * MUT 11 no search for cycles when a request gets a slot          -> every_request_ends
 */
#include "model.h"

/* These need larger sizes than small. */
#if MUT == 1 || MUT == 5 || MUT == 6 || MUT == 11
#undef REQUESTS
#define REQUESTS 3
#undef ABORTS
#define ABORTS 0
#endif
#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef ABORTS
#define ABORTS 1
#endif

mtype = { every_request_ends, slots_come_back, bound_is_kept, oldest_first, own_stages_only };

#define A 0
#define B 1
#define MERGE 2
#define STAGES 3
#define T(q, s) ((q) * STAGES + (s))

#define NONE    0
#define WAITING 1
#define HOLDING 2
#define LEFT    3

byte stay[REQUESTS * STAGES];
byte holders[STAGES];
bool above[REQUESTS * STAGES];          /* the slot was granted above the bound */
bool over[REQUESTS];
byte left[REQUESTS];                    /* stages that the request has left, or passed over */
byte aborts;

/* Streams: from the producer to a and b, and from these to merge. */
#define TO(s)   (s)
#define FROM(s) (2 + (s))
#define S(q, f) ((q) * 4 + (f))
bool uses[REQUESTS * STAGES];           /* the request is to send a delivery to the stage */
bool sent[REQUESTS * 4];                /* the delivery */
bool unsaid[REQUESTS * 4], said[REQUESTS * 4];

/* ---- the admission: all of it is one step, under its lock */

#define waits(q, s)     (stay[T(q, s)] == WAITING && !over[q])
#define holds(q, s)     (stay[T(q, s)] == HOLDING)
#define waitsStuck(q)   ((waits(q, A) && stuck[A]) || (waits(q, B) && stuck[B]) || (waits(q, MERGE) && stuck[MERGE]))
#define holdsStuck(q)   ((holds(q, A) && stuck[A]) || (holds(q, B) && stuck[B]) || (holds(q, MERGE) && stuck[MERGE]))
#define waitsAtAll(q)   (waits(q, A) || waits(q, B) || waits(q, MERGE))
#define isBackward(q)   ((waits(q, A) && (holds(q, B) || holds(q, MERGE))) || (waits(q, B) && holds(q, MERGE)))

hidden byte stuck[STAGES], keeps, looks, backward, granted;
hidden byte i, j, k, pick, at;

#define NO_WAIT (REQUESTS * STAGES)

inline grant(t, s) {
	CHECK(own_stages_only, uses[t]);
	stay[t] = HOLDING;
	holders[s]++
}

/* The oldest wait on a cycle whose request holds a slot. */
inline circle() {
	for (i : 0 .. STAGES - 1) {
		stuck[i] = false;
		for (j : 0 .. REQUESTS - 1) { if :: waits(j, i) -> stuck[i] = true :: else fi }
	}
	for (k : 1 .. STAGES) {                 /* each holder waits for a stuck stage */
		for (i : 0 .. STAGES - 1) {
			for (j : 0 .. REQUESTS - 1) { if :: holds(j, i) && !waitsStuck(j) -> stuck[i] = false :: else fi }
		}
	}
	for (k : 1 .. STAGES) {                 /* and a request that holds a slot on the cycle waits for it */
		for (i : 0 .. STAGES - 1) {
			keeps = false;
			for (j : 0 .. REQUESTS - 1) { if :: waits(j, i) && holdsStuck(j) -> keeps = true :: else fi }
			if :: !keeps -> stuck[i] = false :: else fi
		}
	}
	pick = NO_WAIT;
	for (j : 0 .. REQUESTS - 1) {
		for (i : 0 .. STAGES - 1) {
			if
			:: pick == NO_WAIT && stuck[i] && waits(j, i) && holdsStuck(j) -> pick = T(j, i); at = i
			:: else
			fi
		}
	}
}

/* It is called after each change at a stage. */
inline settle(s, begins) {
	pick = NO_WAIT;
	granted = false;
	for (j : 0 .. REQUESTS - 1) {
		if
#if MUT == 6
		:: holders[s] == 0 && waits(j, s) -> pick = T(j, s)
#else
		:: holders[s] == 0 && pick == NO_WAIT && waits(j, s) -> pick = T(j, s)
#endif
		:: else
		fi
	}
	if
	:: pick != NO_WAIT ->
		for (j : 0 .. REQUESTS - 1) { CHECK(oldest_first, T(j, s) >= pick || !waits(j, s)) }
		grant(pick, s);
		granted = true
	:: else
	fi;
	backward = false;
	for (j : 0 .. REQUESTS - 1) { if :: isBackward(j) -> backward = true :: else fi }
#if MUT == 1
	looks = begins;
#elif MUT == 5
	looks = begins || granted;
#elif MUT == 11
	looks = begins || !granted;
#else
	looks = true;
#endif
	do
	:: backward && looks ->
		circle();
		if
		:: pick == NO_WAIT -> looks = false
		:: else ->
			for (j : 0 .. REQUESTS - 1) { CHECK(bound_is_kept, !holds(j, at) || waitsAtAll(j)) }
			above[pick] = true;
			grant(pick, at)
		fi
	:: else -> break
	od;
	pick = NO_WAIT
}

inline want(q, s) {
	d_step {
		if
		:: stay[T(q, s)] == NONE && !over[q] ->
			stay[T(q, s)] = WAITING;
#if MUT == 7
			if
			:: s < MERGE && holds(q, MERGE) ->
				for (j : 0 .. REQUESTS - 1) { CHECK(bound_is_kept, !holds(j, s) || waitsAtAll(j)) }
				grant(T(q, s), s)
			:: else
			fi;
#endif
			settle(s, true)
#if MUT == 4
		:: stay[T(q, s)] == LEFT && !over[q] ->
			stay[T(q, s)] = WAITING;
			settle(s, true)
#endif
		:: else
		fi
	}
}

/* ---- a request: its producer, its part at a and b, and its part at merge */

/* The stages to which the producer sends, and their order. */
#define NEITHER 0
#define TO_A    1
#define TO_B    2
#define A_B     3
#define B_A     4
#define AT_ONCE 5               /* by two deliveries that were kept */
byte kind[REQUESTS];
byte done_[REQUESTS];           /* deliveries that are sent, then ends */

#define first(q)  ((kind[q] == TO_B || kind[q] == B_A) -> B : A)
#define second(q) (kind[q] == B_A -> A : B)
#define many(q)   (kind[q] == NEITHER -> 0 : (kind[q] <= TO_B -> 1 : 2))

/* A part: it is told of the grant, forwards its deliveries, ends its stream, leaves. */
#define TOLD    1
#define EMITS   2
#define EMITTED 3
#define CLOSED  4
byte part[REQUESTS * STAGES];

/* A process that serves the stage opens the announced tasks; an actor handles one message at a time. */
byte opened[STAGES], emitting[STAGES];
#if MUT == 2
#define mayBegin(q, s)  (opened[s] == 0)
#elif MUT == 3
#define mayBegin(q, s)  (!above[T(q, s)] || emitting[s] == 0)
#else
#define mayBegin(q, s)  true
#endif

inline say(q, f) {
	if :: unsaid[S(q, f)] -> unsaid[S(q, f)] = false; said[S(q, f)] = true :: else fi
}

/* Under the lock of the stream. A stage without deliveries is passed over. */
inline end_stream(q, f, s) {
	if
	:: holds(q, s) -> said[S(q, f)] = true
	:: else -> unsaid[S(q, f)] = true
	fi
#if MUT == 10
	; want(q, s)
#endif
}
inline pass_merge(q) {
	if
	:: unsaid[S(q, FROM(A))] && unsaid[S(q, FROM(B))] && stay[T(q, MERGE)] == NONE ->
		stay[T(q, MERGE)] = LEFT; left[q]++
	:: else
	fi
}
inline pass(q, s) {
	if
	:: unsaid[S(q, TO(s))] && stay[T(q, s)] == NONE ->
		stay[T(q, s)] = LEFT; left[q]++;
		end_stream(q, FROM(s), MERGE);
		pass_merge(q)
	:: else
	fi
}

inline leave(q, s) {
	d_step {
		if :: part[T(q, s)] != 0 -> opened[s]-- :: else fi;
		if :: part[T(q, s)] == EMITS -> emitting[s]-- :: else fi;
		part[T(q, s)] = 0;
		above[T(q, s)] = false;
		stay[T(q, s)] = LEFT;
		left[q]++;
		holders[s]--;
		settle(s, false)
	}
}

/* The part of a request at a or b. */
#define runs(q)         (!over[q])
#if MUT == 9
#define GIVES(q, s)     (part[T(q, s)] != 0)
#else
#define GIVES(q, s)     true
#endif
#define steps(s) \
	:: d_step { runs(q) && holds(q, s) && part[T(q, s)] == 0 && mayBegin(q, s) -> \
		part[T(q, s)] = TOLD; opened[s]++; say(q, TO(s)) } \
	:: atomic { runs(q) && part[T(q, s)] == TOLD && sent[S(q, TO(s))] -> \
		part[T(q, s)] = EMITS; emitting[s]++; want(q, MERGE) } \
	:: d_step { runs(q) && part[T(q, s)] == EMITS && holds(q, MERGE) -> \
		part[T(q, s)] = EMITTED; emitting[s]--; sent[S(q, FROM(s))] = true } \
	:: atomic { runs(q) && part[T(q, s)] == EMITTED && said[S(q, TO(s))] -> \
		part[T(q, s)] = CLOSED; end_stream(q, FROM(s), MERGE); pass_merge(q) } \
	:: atomic { runs(q) && part[T(q, s)] == CLOSED -> leave(q, s) } \
	:: atomic { over[q] && holds(q, s) && GIVES(q, s) -> leave(q, s) }

/* The producer sends to a stage for which it has asked for a slot. */
#define sends(n, s) \
	:: atomic { runs(q) && done_[q] == n && many(q) > n && stay[T(q, s)] == NONE -> want(q, s) } \
	:: d_step { runs(q) && done_[q] == n && many(q) > n && holds(q, s) -> sent[S(q, TO(s))] = true; done_[q]++ }

#if MUT == 8
byte looked[REQUESTS];
#define UNSAID 1
#define SAID   2
#endif

proctype Request(byte q) {
end:	do
	sends(0, first(q))
	sends(1, second(q))
	:: atomic { runs(q) && kind[q] == AT_ONCE && done_[q] == 0 && stay[T(q, A)] != NONE && stay[T(q, B)] == NONE -> want(q, B) }
#if MUT == 8
	:: atomic { runs(q) && done_[q] == many(q) ->
		end_stream(q, TO(A), A);
		if
		:: unsaid[S(q, TO(A))] && stay[T(q, A)] == NONE ->
			stay[T(q, A)] = LEFT; left[q]++;
			looked[q] = (holds(q, MERGE) -> SAID : UNSAID)
		:: else
		fi;
		done_[q] = 3 }
	:: atomic { runs(q) && looked[q] ->
		if :: looked[q] == SAID -> said[S(q, FROM(A))] = true :: else -> unsaid[S(q, FROM(A))] = true fi;
		looked[q] = 0;
		pass_merge(q) }
#else
	:: atomic { runs(q) && done_[q] == many(q) -> end_stream(q, TO(A), A); pass(q, A); done_[q] = 3 }
#endif
	:: atomic { runs(q) && done_[q] == 3 -> end_stream(q, TO(B), B); pass(q, B); done_[q] = 4 }
	steps(A)
	steps(B)
	:: d_step { runs(q) && holds(q, MERGE) && part[T(q, MERGE)] == 0 && mayBegin(q, MERGE) ->
		part[T(q, MERGE)] = TOLD; opened[MERGE]++; say(q, FROM(A)); say(q, FROM(B)) }
	:: atomic { runs(q) && part[T(q, MERGE)] == TOLD && said[S(q, FROM(A))] && said[S(q, FROM(B))] -> leave(q, MERGE) }
	:: atomic { over[q] && holds(q, MERGE) && GIVES(q, MERGE) -> leave(q, MERGE) }
	od
}

proctype Straggler() {
end:	atomic { uses[T(0, A)] && stay[T(0, A)] == LEFT && !over[0] -> want(0, A) }
}

proctype Abort(byte q) {
end:	atomic { aborts < ABORTS && left[q] < STAGES -> over[q] = true; aborts++ }
#if MUT != 9
	d_step {                                                /* it withdraws */
		for (i : 0 .. STAGES - 1) { if :: stay[T(q, i)] == WAITING -> stay[T(q, i)] = LEFT :: else fi }
	}
#endif
}

proctype Watch() {
	byte q;
end:	timeout -> atomic {
		for (q : 0 .. REQUESTS - 1) { CHECK(every_request_ends, over[q] || left[q] == STAGES) }
		for (q : 0 .. STAGES - 1) { CHECK(slots_come_back, holders[q] == 0) }
	}
}

init {
	byte q;
	atomic {
		for (q : 0 .. REQUESTS - 1) {
			if
			:: kind[q] = NEITHER
			:: kind[q] = TO_A
			:: kind[q] = TO_B
			:: kind[q] = A_B
			:: kind[q] = B_A
			:: kind[q] = AT_ONCE
			fi;
			uses[T(q, A)] = (kind[q] != NEITHER && kind[q] != TO_B);
			uses[T(q, B)] = (kind[q] != NEITHER && kind[q] != TO_A);
			uses[T(q, MERGE)] = (kind[q] != NEITHER);
			run Request(q)
		}
		q = 0;
		if
		:: ABORTS > 0 -> run Abort(0)
		:: true
		fi;
		run Straggler();
		run Watch()
	}
}
