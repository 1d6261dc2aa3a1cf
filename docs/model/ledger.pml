/*
 * Debts, pins and the closing state: when may the bytes of an object go?
 *
 * One directory slot, its owner, three reader nodes. The owner charges reader
 * 0, reader 1 or both for each object, publishes it and sends it. A reader may
 * forward the handle by reference, 0 to 1 and 1 to 2; the receiver was not
 * charged, so it pins. Reader 2 also pulls at any time by a handle that it
 * remembers. Up to DEATHS readers die, each at any step.
 *
 * small: -DGENS=2 -DDEATHS=1
 * full:  -DGENS=2 -DDEATHS=3
 * full:  -DGENS=3 -DDEATHS=1
 *
 * MUT 1  the owner evicts without a check of the debts       -> payload_intact
 * MUT 2  the owner checks the pins, then stores closing      -> payload_intact
 * MUT 3  the owner frees without a check of the pins         -> payload_intact
 * MUT 4  the owner forgets a reader that is not dead         -> payload_intact
 * MUT 5  a reader settles one debt twice                     -> payload_intact
 * MUT 6  a reader raises its pin and does not check again    -> payload_intact
 * MUT 7  a forwarder releases as soon as it has sent         -> forward_arrives
 * MUT 8  the owner stores free before it waits for pins      -> forward_arrives
 * MUT 9  a receiver moves the head before it has pinned      -> forward_arrives
 * MUT 10 a reader takes closing for gone                     -> forward_arrives
 * MUT 11 a reader keeps its pin on a stale handle            -> slot_comes_back
 * MUT 12 a dead reader's debts are kept                      -> slot_comes_back
 */
#include "model.h"

#ifndef GENS
#define GENS 2   /* objects, one after the other in the same slot */
#endif
#ifndef DEATHS
#define DEATHS 3
#endif

mtype = { payload_intact, forward_arrives, slot_comes_back };

/* Written by the owner. */
byte word;       /* of the slot, in the directory */
byte bytes;      /* the arena: the generation that the payload belongs to */
byte owedBy[2];  /* the account of reader r */
bool gone[3];    /* the owner has forgotten reader r */
byte gen;

/* Written by reader r, in its ledger. */
byte doneBy[2];
byte pinBy[3];

/* Lanes from the owner carry debts. Those between readers hold one frame each;
 * passed says that the head of the lane into r has moved past it. */
chan lane[2] = [GENS] of { byte };
chan hand[3] = [1] of { byte };
bool passed[3];

bool dead[3];    /* the kernel knows it */
byte remembered; /* a handle that reader 2 keeps */

#define settled(r)  (gone[r] || doneBy[r] == owedBy[r])
#define unpinned(r) (gone[r] || pinBy[r] == 0)

inline put() {
	gen++;
	bytes = gen;
	if
	:: !gone[0] -> owedBy[0]++; word = LIVE(gen); lane[0]!gen
	:: !gone[1] -> owedBy[1]++; word = LIVE(gen); lane[1]!gen
	:: !gone[0] && !gone[1] ->
		owedBy[0]++; owedBy[1]++; word = LIVE(gen); lane[0]!gen; lane[1]!gen
	fi;
	remembered = gen
}

/* The checks of several readers are separate steps in the code. */
inline look_at_pins(busy) {
	busy = !unpinned(0);
	busy = busy || !unpinned(1);
	busy = busy || !unpinned(2)
}

inline evict(busy) {
#if MUT == 2
	look_at_pins(busy);
	if :: busy -> skip :: else -> word = CLOSING(gen); word = EMPTY; bytes = 0 fi
#elif MUT == 3
	word = CLOSING(gen); word = EMPTY; bytes = 0
#elif MUT == 8
	word = EMPTY;
	look_at_pins(busy);
	(unpinned(0) || dead[0]); (unpinned(1) || dead[1]); (unpinned(2) || dead[2]);
	bytes = 0; busy = false
#else
	word = CLOSING(gen);
	look_at_pins(busy);
	if :: busy -> word = LIVE(gen) :: else -> word = EMPTY; bytes = 0 fi
#endif
}

/* The ledger of a forgotten reader is never read again. Clearing it here merges
 * states that differ in it alone. */
inline forget(r) {
	gone[r] = true;
	if
	:: dead[r] ->
		pinBy[r] = 0;
		if :: r < 2 -> doneBy[r] = 0; owedBy[r] = 0 :: else fi;
		do :: r < 2 && len(lane[r]) > 0 -> lane[r]?_ :: else -> break od;
		do :: r > 0 && len(hand[r]) > 0 -> hand[r]?_ :: else -> break od
	:: else
	fi
}

/* After a try that found a pin, the owner waits until the reader releases it and
 * wakes the owner: see wake.pml. */
#define mayTry(busy) (isLive(word) && (!busy || unpinned(0) && unpinned(1) && unpinned(2)))

#if MUT == 4
#define mayForget(r) (!gone[r])
#elif MUT == 12
#define mayForget(r) (false)
#else
#define mayForget(r) (dead[r] && !gone[r])
#endif

proctype Owner() {
	bool busy;
end:	do
	:: word == EMPTY && gen < GENS && !(gone[0] && gone[1]) -> put()
#if MUT == 1
	:: mayTry(busy) -> evict(busy)
#else
	/* done only grows, and only this process adds debts: so one load of both
	 * readers finds the same as one after the other. */
	:: mayTry(busy) && settled(0) && settled(1) -> evict(busy)
#endif
	:: d_step { mayForget(0) -> forget(0) }
	:: d_step { mayForget(1) -> forget(1) }
	:: d_step { mayForget(2) -> forget(2) }
	od
}

/* A bad payload stays bad: one check, at the end, is enough. */
#define use(g) CHECK(payload_intact, bytes == g)

/* A forwarder releases its hold only when the receiver has its own. */
inline pass_on(r, g) {
	if
	:: true
	:: r < 2 && !dead[r+1] && empty(hand[r+1]) ->
		passed[r+1] = false;
		hand[r+1]!g;
#if MUT != 7
		(passed[r+1] || dead[r+1])
#endif
	fi
}

inline take_pin(r, g, held) {
	pinBy[r]++;
#if MUT == 6
	held = true
#else
	do
	:: word == LIVE(g) -> held = true; break
#if MUT != 10
	:: word == CLOSING(g) -> (word != CLOSING(g))
#endif
	:: else -> held = false; break
	od;
	if
#if MUT != 11
	:: !held -> pinBy[r]--
#endif
	:: else
	fi
#endif
}

proctype Reader(byte r) {
	byte g;
	bool held;
	{
end:	do
	:: r < 2 && nempty(lane[r]) ->            /* a delivery: its debt holds it */
		lane[r]?g;
		pass_on(r, g);
		use(g);
#if MUT == 5
		if :: r == 0 -> doneBy[0]++ :: else fi;
#endif
		d_step { doneBy[r]++; g = 0 }
	:: r > 0 && nempty(hand[r]) ->            /* forwarded: this reader was not charged */
		hand[r]?g;
#if MUT == 9
		passed[r] = true;
#endif
		take_pin(r, g, held);
		if
		:: held ->
			passed[r] = true;
			pass_on(r, g);
			use(g);
			d_step { pinBy[r]--; g = 0; held = false }
		:: else ->                            /* only if the forwarder died */
			CHECK(forward_arrives, dead[r-1]);
			passed[r] = true
		fi
	:: r == 2 && remembered > 0 ->            /* a pull: stale is a right answer */
		d_step { g = remembered; remembered = 0 }
		take_pin(r, g, held);
		if
		:: held ->
			use(g);
			d_step { pinBy[r]--; g = 0; held = false }
		:: else
		fi
	od
	} unless { dead[r] }
}

proctype Death() {
	byte deaths;
	do
	:: deaths < DEATHS ->
		deaths++;
		if
		:: !dead[0] -> dead[0] = true
		:: !dead[1] -> dead[1] = true
		:: !dead[2] -> dead[2] = true
		fi
	:: break
	od
}

/* Checks the final state, when no other process can move. */
proctype Watch() {
end:	timeout -> CHECK(slot_comes_back, word == EMPTY && (gen == GENS || (gone[0] && gone[1])))
}

init {
	atomic {
		run Owner(); run Death(); run Watch();
		run Reader(0); run Reader(1); run Reader(2)
	}
}
