/*
 * Reservations that are never committed: slot, space and debts come back, once.
 *
 * One slot, for which the writer grants GENS reservations, each with a debt of
 * the one reader. A goroutine of the owner's process takes each from an extent,
 * which the writer may revoke meanwhile, fills it, and commits or aborts it; the
 * goroutine itself ends the state reserved. For a small payload that a client puts
 * into the host's store, such a goroutine runs in the host; the client is granted
 * no reservation.
 *
 * A committed delivery waits in a queue of the sender. It is then sent, or dropped
 * by its edge's policy.
 *
 * small: -DGENS=2
 * full:  -DGENS=5
 *
 * MUT 1 an abort frees the slot and keeps the debt              -> slot_comes_back
 * MUT 2 an abort returns the debt twice                         -> owed_at_least_done
 * MUT 3 a frame is withdrawn after it was published             -> owed_at_least_done
 * MUT 4 the writer revokes without the producer's lock          -> payload_intact
 * MUT 5 an abort after the commit takes effect                  -> reservation_ends_once
 */
#include "model.h"

#ifndef GENS
#define GENS 2
#endif

mtype = {
	payload_intact, slot_comes_back, owed_at_least_done, reservation_ends_once
};

#define HALF(g)  (2 * (g))      /* of a payload while it is being filled */
#define WHOLE(g) (2 * (g) + 1)

byte word, bytes;
byte gen, owed;           /* the writer's */
byte done_;               /* the reader's; the code's done */
byte queue;               /* committed and not sent yet */
byte sent;                /* the frame in the lane, for MUT 3 */

chan lane = [GENS] of { byte };

/* The extent: a reservation that no goroutine has begun to fill. The producer's
 * lock guards it, so that one goroutine takes it. */
byte unused;

inline publish(g) {
	word = LIVE(g);
	queue = g
}

inline free_aborted() {
#if MUT == 2
	owed = owed - 2;
#elif MUT != 1
	owed--;
#endif
	CHECK(owed_at_least_done, owed <= gen && owed >= done_);
	bytes = 0;
	word = EMPTY
}

/* The writer actor. Its steps exclude each other; holders and reader do not. */
proctype Owner() {
	byte g;
end:	do
	:: word == EMPTY && gen < GENS ->
		gen++;
		owed++;
		word = RESERVED(gen);
		unused = gen
#if MUT == 4
	:: unused > 0 -> g = unused; unused = 0; word = ABORTED(g); g = 0
#else
	:: atomic { unused > 0 -> g = unused; unused = 0 } word = ABORTED(g); g = 0 /* revoke */
#endif
	:: isAborted(word) -> free_aborted()
	:: queue > 0 -> sent = queue; lane!queue; queue = 0
	:: queue > 0 -> queue = 0; owed--       /* drop oldest, before a reader has seen it */
#if MUT == 3
	:: sent > 0 && sent == GEN(word) && owed > done_ -> owed--; sent = 0
#endif
	:: isLive(word) && queue == 0 && owed == done_ ->
		CHECK(owed_at_least_done, owed <= gen);
		word = EMPTY;
		bytes = 0
	od
}

inline fill(g) {
	bytes = HALF(g);
	bytes = WHOLE(g)
}

/* A goroutine of the owner's process. */
proctype Producer() {
	byte g;
end:	do
#if MUT == 4
	:: unused > 0 -> g = unused;
		unused = 0;
#else
	:: atomic { unused > 0 -> g = unused; unused = 0 }
#endif
		fill(g);
		if
		:: CHECK(reservation_ends_once, word == RESERVED(g)); publish(g)
		:: true
		fi;
		/* The deferred Abort: one exchange, which fails after a commit. */
#if MUT == 5
		CHECK(reservation_ends_once, word == RESERVED(g));
		word = ABORTED(g);
#else
		if
		:: atomic { word == RESERVED(g) -> word = ABORTED(g) }
		:: else
		fi;
#endif
		g = 0
	od
}

proctype Reader() {
	byte g;
end:	do
	:: lane?g ->
		CHECK(payload_intact, bytes == WHOLE(g));
		CHECK(payload_intact, bytes == WHOLE(g));
		d_step { done_++; g = 0 }
		CHECK(owed_at_least_done, owed >= done_)
	od
}

proctype Watch() {
end:	timeout -> atomic {
		CHECK(owed_at_least_done, owed >= done_);
		CHECK(slot_comes_back, word == EMPTY && gen == GENS && owed == done_)
	}
}

init {
	atomic {
		run Owner(); run Producer(); run Reader(); run Watch()
	}
}
