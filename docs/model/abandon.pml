/*
 * Reservations that nobody commits: slot, room and debts come back, once.
 *
 * One slot, for which the owner grants GENS reservations, each with a debt of
 * the one reader. Who gets one fills it, and commits or aborts it:
 *
 *   - a goroutine of the owner's process, which takes it from an extent that
 *     the writer may revoke meanwhile, and steps out of reserved itself;
 *   - one of two clients that keep no accounts, which say so on their sockets;
 *     each dies at any step, or closes its socket and lives on.
 *
 * A committed delivery waits in a queue of the sender's own; from there it is
 * sent, or dropped by its edge's policy.
 *
 * small: -DGENS=2
 * full:  -DGENS=4
 *
 * MUT 1 a dead client's reservation is left as it is            -> slot_comes_back
 * MUT 2 the slot of an aborted one is freed, its debt is kept   -> slot_comes_back
 * MUT 3 its debt is given back twice                            -> owed_at_least_done
 * MUT 4 a closed socket is taken for a death                    -> payload_intact
 * MUT 5 a commit after the abort is believed                    -> aborted_stays_aborted
 * MUT 6 a frame is taken back after it was published            -> owed_at_least_done
 * MUT 7 the writer revokes without the producer's lock          -> payload_intact
 * MUT 8 a client aborts, and fills all the same                 -> payload_intact
 * MUT 9 an abort after the commit is believed                   -> reservation_ends_once
 */
#include "model.h"

#ifndef GENS
#define GENS 2
#endif

mtype = {
	payload_intact, slot_comes_back, owed_at_least_done,
	aborted_stays_aborted, reservation_ends_once
};

#define CLIENTS 2
#define HALF(g)  (2 * (g))      /* of a payload while it is being filled */
#define WHOLE(g) (2 * (g) + 1)

byte word, bytes;
byte gen, owed;           /* the writer's */
byte done_;               /* the reader's; the code's done */
byte queue;               /* committed and not sent yet */
byte sent;                /* the frame in the lane, for MUT 6 */

chan lane = [GENS] of { byte };

/* The extent: a reservation nobody has begun to fill. Under the producer's
 * lock, so that who takes it out of there has it alone. */
byte unused;

/* Clients. A socket carries grants one way and answers the other. */
mtype = { commit, abort };
chan grants[CLIENTS] = [1] of { byte };
chan answers[CLIENTS] = [2] of { mtype, byte };
byte open[CLIENTS];       /* the host's note of what a client was granted */
bool dead[CLIENTS], gone[CLIENTS], hungUp[CLIENTS];

inline publish(g) {
	word = LIVE(g);
	queue = g
}

/* An answer from client c: it counts if the grant is still open. */
inline handle(c) {
	answers[c]?verb,g;
	if
#if MUT == 5
	:: verb == commit ->
#else
	:: open[c] == g && verb == commit ->
#endif
		CHECK(aborted_stays_aborted, word == RESERVED(g));
		publish(g);
		open[c] = 0
	:: open[c] == g && verb == abort -> word = ABORTED(g); open[c] = 0
	:: else
	fi;
	d_step { g = 0; verb = 0 }
}

#if MUT == 4
#define mayForget(c) (!gone[c] && (dead[c] || hungUp[c]))
#else
#define mayForget(c) (!gone[c] && dead[c])
#endif

inline forget(c) {
	gone[c] = true;
#if MUT != 1
	if
	:: open[c] > 0 -> word = ABORTED(open[c]); open[c] = 0
	:: else
	fi
#endif
}

inline free_aborted() {
#if MUT == 3
	owed = owed - 2;
#elif MUT != 2
	owed--;
#endif
	CHECK(owed_at_least_done, owed <= gen && owed >= done_);
	bytes = 0;
	word = EMPTY
}

/* The writer actor. Its steps exclude each other; holders and reader do not. */
proctype Owner() {
	mtype verb;
	byte g;
end:	do
	:: word == EMPTY && gen < GENS ->
		gen++;
		owed++;
		word = RESERVED(gen);
		if
		:: unused = gen
		:: !gone[0] -> open[0] = gen; grants[0]!gen
		:: !gone[1] -> open[1] = gen; grants[1]!gen
		fi
#if MUT == 7
	:: unused > 0 -> g = unused; unused = 0; word = ABORTED(g); g = 0
#else
	:: atomic { unused > 0 -> g = unused; unused = 0 } word = ABORTED(g); g = 0 /* revoke */
#endif
	:: nempty(answers[0]) -> handle(0)
	:: nempty(answers[1]) -> handle(1)
	:: mayForget(0) -> forget(0)
	:: mayForget(1) -> forget(1)
	:: isAborted(word) -> free_aborted()
	:: queue > 0 -> sent = queue; lane!queue; queue = 0
	:: queue > 0 -> queue = 0; owed--       /* drop oldest, before anybody has seen it */
#if MUT == 6
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
#if MUT == 7
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
#if MUT == 9
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

proctype Client(byte c) {
	byte g;
	{
end:	do
	:: grants[c]?g ->
#if MUT == 8
		if :: answers[c]!abort,g :: true fi;
#endif
		if
		:: fill(g); answers[c]!commit,g
		:: answers[c]!abort,g
		:: hungUp[c] = true; fill(g)    /* lives on, and nobody hears it any more */
		fi;
		g = 0
	od
	} unless { dead[c] }
}

proctype Death() {
	if :: dead[0] = true :: skip fi;
	if :: dead[1] = true :: hungUp[1] -> dead[1] = true :: skip fi
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

/* What a client that lives on was granted, stays with it until its death. */
#define kept(c) (hungUp[c] && !dead[c] && open[c] > 0)

proctype Watch() {
end:	timeout -> atomic {
		CHECK(owed_at_least_done, owed >= done_);
		CHECK(slot_comes_back, kept(0) || kept(1) || (word == EMPTY && gen == GENS && owed == done_))
	}
}

init {
	atomic {
		run Owner(); run Producer(); run Client(0); run Client(1);
		run Death(); run Reader(); run Watch()
	}
}
