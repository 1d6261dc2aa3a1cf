/*
 * The second check of the local debts: a hold is handed on during the owner's
 * check.
 *
 * One slot. Readers in the owner's process share an account: a reader may take a
 * lease by a pin, make it a debt of another reader by Share, and release it. So a
 * debt can appear after the owner has checked the debts, and its pin can be gone
 * before the owner checks the pins. HOPS bounds the number of such hand-overs.
 *
 * small: -DHOPS=3 -DREADERS=2
 * full:  -DHOPS=6 -DREADERS=2
 *
 * MUT 1 the owner checks the local debts only once                -> payload_intact
 * MUT 2 the second check comes before that of the pins            -> payload_intact
 * MUT 3 Share adds its debt after the lease is released           -> payload_intact
 * MUT 4 the owner reads owed before done                          -> done_within_owed
 * MUT 5 a handle is taken twice, and taken not compared with owed -> done_within_owed
 * MUT 6 taken is compared and stored in two steps                 -> done_within_owed
 */
#include "model.h"

#ifndef HOPS
#define HOPS 3
#endif
#ifndef READERS
#define READERS 2  /* goroutines that read by the local account */
#endif

mtype = { payload_intact, done_within_owed, slot_comes_back };

byte word, bytes;            /* written by the owner */
byte owed, taken, done_, pin; /* the local account; done_ is the code's done */
byte hops;
bool closed;                 /* the object was evicted */
chan mail = [HOPS + 1] of { bit }; /* deliveries of the object between stages */

#if MUT == 4
#define look_at_debts() seenOwed = owed; seenDone = done_
#else
/* A share that was released has raised owed before done. */
#define look_at_debts() seenDone = done_; seenOwed = owed
#endif

proctype Owner() {
	byte seenOwed, seenDone;
	bool busy;
	bytes = 1;
	owed = 1;
	word = LIVE(1);
	mail!0;
	do
	:: word == LIVE(1) && owed <= done_ -> /* otherwise it would only spin */
		look_at_debts();
		CHECK(done_within_owed, seenDone <= seenOwed);
		if
		:: seenOwed != seenDone -> skip
		:: else ->
			word = CLOSING(1);
#if MUT == 2
			look_at_debts();
			CHECK(done_within_owed, seenDone <= seenOwed);
			busy = seenOwed != seenDone;
			busy = busy || pin > 0;
#else
			busy = pin > 0;
#if MUT != 1
			look_at_debts();
			CHECK(done_within_owed, seenDone <= seenOwed);
			busy = busy || seenOwed != seenDone;
#endif
#endif
			if
			:: busy -> word = LIVE(1); busy = false
			:: else -> break
			fi
		fi
	od;
	bytes = 0;
	word = EMPTY;
	closed = true
}

/* A reader with a lease may hand the object on; the lease holds it meanwhile. */
inline hand_on() {
	if
	:: hops < HOPS ->
		hops++;
		owed++;
		mail!0
	:: true
	fi
}

/* Take, use, Release. Another reader takes the same handle a second time: it finds
 * no debt, or takes the debt of the rightful reader. */
inline take() {
	do
	:: word != LIVE(1) && word != CLOSING(1) -> break
	:: else ->
		collected = taken;
		left = owed - collected;
		if
#if MUT != 5
		:: left <= 0 -> break
#endif
		:: else ->
#if MUT == 6
			taken = collected + 1; held = true; break
#else
			if
			:: atomic { taken == collected -> taken = collected + 1 } held = true; break
			:: atomic { taken != collected -> skip }
			fi
#endif
		fi
	od;
	if
	:: held ->
		hand_on();
		CHECK(payload_intact, bytes == 1);
		done_++
	:: else
	fi;
	d_step { held = false; collected = 0; left = 0 }
}

proctype Reader() {
	bool held;
	byte collected;
	short left;
end:	do
	:: mail?_ -> take()
	:: hops < HOPS -> hops++; take()
	:: hops < HOPS ->                  /* Pin, by a remembered handle */
		hops++;
		pin++;
		do
		:: word == LIVE(1) -> held = true; break
		:: word == CLOSING(1) -> (word != CLOSING(1))
		:: word == EMPTY -> break
		od;
		if
		:: held ->
#if MUT == 3
			CHECK(payload_intact, bytes == 1);
			pin--;
			if :: hops < HOPS -> hops++; owed++; mail!0 :: true fi;
#else
			hand_on();
			CHECK(payload_intact, bytes == 1);
			pin--;
#endif
			held = false
		:: else -> pin--
		fi
	od
}

proctype Watch() {
end:	timeout -> CHECK(slot_comes_back, closed && owed == done_)
}

init {
	byte i;
	atomic {
		run Owner(); run Watch();
		for (i : 1 .. READERS) { run Reader() }
	}
}
