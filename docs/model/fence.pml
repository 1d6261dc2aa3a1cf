/*
 * Which stores need a fence: plain and atomic stores on a machine that delays
 * them.
 *
 * Spin's own memory is sequentially consistent. Here the owner's stores to the
 * arena, the directory and the account are late: they reach the others some
 * time after.
 *
 * ORDER 1, as on amd64: they do so in the order of the program. An atomic store
 * waits until all have arrived, itself included.
 * ORDER 0, as on arm64: a plain store may overtake any other store, except one to
 * the same location. An atomic store comes after all earlier stores; later plain
 * stores may still overtake it. An atomic load waits for the atomic stores before
 * it. (One freedom is left out: of a plain and an atomic store to one location
 * that are both late, the plain one overtakes no other.)
 *
 * The reader's half is an atomic addition to its pin, and atomic loads.
 *
 * The owner puts an object into each of two slots, evicts both in one step,
 * and puts a second one into each, for which it charges the reader. The reader
 * has the handles of the first two and uses them at any time: it
 * collects a debt if it finds one (Reader.Take), and pins otherwise (Reader.Pin).
 *
 * small: -DORDER=0
 * small: -DORDER=1
 * full:  -DORDER=0 -DGETS=4
 * full:  -DORDER=1 -DGETS=4
 *
 * MUT 1 the last closing of a step is a plain store too        -> payload_intact
 * MUT 2 live is a plain store, where stores are reordered      -> payload_intact
 * MUT 3 the reader loads the word before its pin is visible    -> payload_intact
 * MUT 4 a debt is a plain store, where stores are reordered    -> debt_of_its_generation
 */
#include "model.h"

#ifndef ORDER
#define ORDER 0
#endif
#ifndef GETS
#define GETS 2   /* by a remembered handle */
#endif

mtype = { payload_intact, debt_of_its_generation, slot_comes_back, delivery_finds_its_debt };

/* Locations that the owner writes, as all others see them; only its own stores are late. */
#define WORD(s)  (3 * (s))
#define BYTES(s) (3 * (s) + 1)
#define OWED(s)  (3 * (s) + 2)
byte seen[6];
chan late = [12] of { byte, bit, byte }; /* location, whether atomic, value */

inline plain(place, value) { late!place,0,value }
#if ORDER == 1
inline atomically(place, value) { d_step { empty(late) -> seen[place] = value } }
#define atomicStoresArrived true
#else
inline atomically(place, value) { late!place,1,value }
#define atomicStoresArrived !late??[_,1,_]
#endif

byte pin[2];     /* the reader's ledger */
bool latePin[2]; /* only in MUT 3 */
bool second[2];  /* slot s holds its second object */

chan lane = [2] of { byte }; /* slots whose second object was sent */

#define FIRST  1
#define SECOND 2

/* The oldest store may always arrive. With ORDER 0 the oldest store to a location
 * may too, if none to that location is atomic. */
#define overtakes(place) (ORDER == 0 && late??[place,0,_] && !late??[place,1,_])

proctype Memory() {
	byte place, value;
end:	do
	:: d_step { late?place,_,value -> seen[place] = value; place = 0; value = 0 }
	:: d_step { overtakes(0) -> late??0,_,value; seen[0] = value; value = 0 }
	:: d_step { overtakes(1) -> late??1,_,value; seen[1] = value; value = 0 }
	:: d_step { overtakes(2) -> late??2,_,value; seen[2] = value; value = 0 }
	:: d_step { overtakes(3) -> late??3,_,value; seen[3] = value; value = 0 }
	:: d_step { overtakes(4) -> late??4,_,value; seen[4] = value; value = 0 }
	:: d_step { overtakes(5) -> late??5,_,value; seen[5] = value; value = 0 }
	:: d_step { latePin[0] -> pin[0]++; latePin[0] = false }
	:: d_step { latePin[1] -> pin[1]++; latePin[1] = false }
	od
}

/* grant, fill, commit */
inline put(s, g) {
	plain(WORD(s), RESERVED(g));
	/* Not before free and reserved are stored: a debt that is visible while the word
	 * is still closing would be taken for one of the old object. */
#if ORDER == 1 || MUT == 4
	plain(OWED(s), g - FIRST);
#else
	atomically(OWED(s), g - FIRST);
#endif
	plain(BYTES(s), g);
#if MUT == 2
	plain(WORD(s), LIVE(g))
#else
	atomically(WORD(s), LIVE(g))
#endif
}

/* An atomic store announces a delivery to a consumer. */
inline send(s) { atomic { empty(late) -> lane!s } }

#define candidate(s) (!second[s] && pin[s] == 0)

inline decide(s) {
	if
	:: second[s] -> skip
	:: !second[s] && pin[s] > 0 -> atomically(WORD(s), LIVE(FIRST))
	:: !second[s] && pin[s] == 0 -> plain(WORD(s), EMPTY); freed[s] = true
	fi
}

proctype Owner() {
	bool freed[2];
	put(0, FIRST);
	put(1, FIRST);
	do
	:: second[0] && second[1] -> break
	:: candidate(0) || candidate(1) ->
		if
		:: !second[0] && !second[1] ->
			plain(WORD(0), CLOSING(FIRST));
			/* the fence of the last store fences all */
#if MUT == 1
			plain(WORD(1), CLOSING(FIRST))
		:: second[0] -> plain(WORD(1), CLOSING(FIRST))
		:: second[1] -> plain(WORD(0), CLOSING(FIRST))
#else
			atomically(WORD(1), CLOSING(FIRST))
		:: second[0] -> atomically(WORD(1), CLOSING(FIRST))
		:: second[1] -> atomically(WORD(0), CLOSING(FIRST))
#endif
		fi;
		(atomicStoresArrived);
		decide(0);
		decide(1);
		if :: freed[0] -> freed[0] = false; put(0, SECOND); second[0] = true; send(0) :: else fi;
		if :: freed[1] -> freed[1] = false; put(1, SECOND); second[1] = true; send(1) :: else fi
	od
}

#define isPresent(w, g) ((w) == LIVE(g) || (w) == CLOSING(g))

/* Collects a remaining debt: it loads the word, the debts, the word again. */
inline collect(s, g, held) {
	word = seen[WORD(s)];
	if
	:: isPresent(word, g) ->
		left = seen[OWED(s)] - taken[s];
		word = seen[WORD(s)];
		if
		:: isPresent(word, g) && left > 0 -> taken[s]++; held = true
		:: else
		fi
	:: else
	fi;
	d_step { word = 0; left = 0 }
}

proctype Reader() {
	byte s, gets, word, taken[2], left;
	bool held;
end:	do
	:: lane?s ->
		collect(s, SECOND, held);
		CHECK(delivery_finds_its_debt, held);
		CHECK(payload_intact, seen[BYTES(s)] == SECOND);
		d_step { held = false; s = 0 }
	:: gets < GETS && seen[WORD(0)] != EMPTY && seen[WORD(1)] != EMPTY ->
		gets++;
		if :: s = 0 :: s = 1 fi;
		collect(s, FIRST, held);
		CHECK(debt_of_its_generation, !held);
#if MUT == 3
		latePin[s] = true;
#else
		pin[s]++;
#endif
		do
		:: seen[WORD(s)] == LIVE(FIRST) -> CHECK(payload_intact, seen[BYTES(s)] == FIRST); break
		:: seen[WORD(s)] == CLOSING(FIRST) -> (seen[WORD(s)] != CLOSING(FIRST))
		:: else -> break
		od;
		(!latePin[s]);
		d_step { pin[s]--; s = 0 }
	od
}

proctype Watch() {
end:	timeout -> CHECK(slot_comes_back, second[0] && second[1])
}

init { atomic { run Memory(); run Owner(); run Reader(); run Watch() } }
