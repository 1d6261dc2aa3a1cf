/*
 * A reader's index is used again, with a new ledger.
 *
 * Reader A has an index of the store and dies at any step; B gets that index
 * when the owner has removed A. Meanwhile the owner fills one slot repeatedly,
 * charges the present reader of the index, and aborts some reservations. Only its
 * reader writes a ledger; a dead reader's ledger stays unchanged. Column, ledger
 * and lane of an index belong together: all are new for a newcomer, and no earlier
 * object is charged to it. The newcomer also pulls, as soon as it has the store's
 * memory.
 *
 * small: -DGENS=3
 * full:  -DGENS=6
 *
 * MUT 1 the newcomer gets the old column                          -> slot_comes_back
 * MUT 2 the old ledger's done is taken for the newcomer's         -> payload_intact
 * MUT 3 a reservation stays charged to the index                  -> debts_are_its_own
 * MUT 4 a closed socket is taken for a death                      -> payload_intact
 * MUT 5 the newcomer gets the memory before it is in the scan     -> payload_intact
 * MUT 6 the newcomer gets the old lane                            -> debts_are_its_own
 */
#include "model.h"

#ifndef GENS
#define GENS 3
#endif

mtype = { payload_intact, debts_are_its_own, slot_comes_back };

#define A    0
#define B    1
#define NONE 2

byte word, bytes, gen;      /* written by the owner */

/* Columns, ledgers and lanes; each is new once. */
byte owed[2];
byte doneBy[2], pinBy[2];   /* written by readers A and B */
chan lane[2] = [GENS] of { byte };

/* The owner's table of readers, of one index. */
byte reader = NONE;
byte column, ledger, laneAt;
bool charged;               /* of the object in the slot: the index owes for it */
byte chargedTo;             /* the charged reader, for the promises alone */

bool mapped[2];             /* reader r has the memory of the store */
bool dead, hungUp, joined;
byte remembered;

#if MUT == 4
#define mayRemove (reader == A && (dead || hungUp))
#else
#define mayRemove (reader == A && dead)
#endif

inline admit() {
	d_step {
#if MUT != 1
		column = B;
#endif
#if MUT != 2
		ledger = B;
#endif
#if MUT != 6
		laneAt = B
#endif
	}
	reader = B;
	joined = true;
	mapped[B] = true
}

/* The first loads of the scan stand for all: see ledger.pml and share.pml. */
#define settled  (reader == NONE || owed[column] == doneBy[ledger])
#define unpinned (reader == NONE || pinBy[ledger] == 0)

inline evict() {
	word = CLOSING(gen);
	if
	:: unpinned -> word = EMPTY; bytes = 0; charged = false
	:: else -> word = LIVE(gen)
	fi
}

proctype Owner() {
	mapped[A] = true;
	reader = A;
end:	do
	:: word == EMPTY && gen < GENS ->
		gen++;
		if
		:: reader != NONE -> owed[column]++; charged = true; chargedTo = reader
		:: else
		fi;
		word = RESERVED(gen)
	:: word != EMPTY && word == RESERVED(gen) -> /* commit */
		bytes = gen;
		word = LIVE(gen);
		remembered = gen;
		if :: charged -> lane[laneAt]!gen :: else fi
	:: word != EMPTY && word == RESERVED(gen) -> /* abort, and give the debt back */
		if
		:: charged ->
			CHECK(debts_are_its_own, chargedTo == reader);
			owed[column]--;
			charged = false
		:: else
		fi;
		word = EMPTY
	:: isLive(word) && settled && unpinned -> evict()
	:: mayRemove ->
		reader = NONE;
#if MUT != 3
		charged = false
#endif
#if MUT == 5
	:: reader == NONE && !mapped[B] -> mapped[B] = true
	:: mapped[B] && !joined -> admit()
#else
	:: reader == NONE && !joined -> admit()
#endif
	od
}

inline use(g) { CHECK(payload_intact, bytes == g) }

proctype Reader(byte r) {
	byte g;
endUnborn:
	(mapped[r]);
	{
end:	do
	:: nempty(lane[r]) ->
		lane[r]?g;
		use(g);
		d_step { doneBy[r]++; g = 0 }
#if MUT == 6
	:: r == B && nempty(lane[A]) ->
		lane[A]?g;
		CHECK(debts_are_its_own, chargedTo == B);
		use(g);
		d_step { doneBy[r]++; g = 0 }
#endif
	:: remembered > 0 ->
		d_step { g = remembered; remembered = 0 }
		pinBy[r]++;
		do
		:: word == LIVE(g) -> use(g); break
		:: word == CLOSING(g) -> (word != CLOSING(g))
		:: else -> break
		od;
		pinBy[r]--;
		g = 0
	od
	} unless { r == A && dead }
}

proctype Death() {
	if
	:: hungUp = true; dead = true
	:: dead = true
	:: skip
	fi
}

proctype Watch() {
end:	timeout -> CHECK(slot_comes_back, word == EMPTY && gen == GENS)
}

init { atomic { run Owner(); run Reader(A); run Reader(B); run Death(); run Watch() } }
