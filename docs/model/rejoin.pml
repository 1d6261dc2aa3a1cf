/*
 * A node joins again: messages of an older epoch have no effect.
 *
 * A host delivers WORKS payloads to one client and frees each when the client
 * has released it. The connection breaks at any step, at most JOINS - 1 times,
 * and the client, which lives on, joins again. Both sides number deliveries
 * from 1 in each epoch, so a number alone does not identify a delivery. Either
 * side may still read packets of older connections. The client may go on reading
 * its payloads until it says hello again; until then the host keeps them.
 *
 * small: -DWORKS=2 -DJOINS=2
 * full:  -DWORKS=3 -DJOINS=3
 *
 * MUT 1 a release of an older epoch takes effect             -> payload_intact
 * MUT 2 a delivery of an older epoch is taken                -> payload_intact
 * MUT 3 a break of the connection frees held payloads        -> payload_intact
 * MUT 4 the new hello does not free held payloads            -> room_comes_back
 * MUT 5 the client says hello while it still reads           -> payload_intact
 * MUT 6 an unreleased payload is not delivered again         -> work_arrives
 */
#include "model.h"

#ifndef WORKS
#define WORKS 2
#endif
#ifndef JOINS
#define JOINS 2
#endif

mtype = { payload_intact, room_comes_back, work_arrives };

/* The work in each slot of the host's memory; 0 is free. */
#define SLOTS 2
byte bytes[SLOTS];

chan toClient = [3] of { byte, byte, byte, byte }; /* epoch, number, slot, work */
chan toHost = [3] of { byte, byte };               /* epoch, number: released */
chan hello = [1] of { bit };
chan welcome = [0] of { byte };                    /* the epoch; before any delivery */

byte joins;              /* also the host's epoch */
bool broken = true;      /* the connection */
bool over[4];            /* released, and known to be */
byte used[WORKS + 1];

byte mine;               /* the client's epoch; 0 between two */
bool reading;

/* Frees the slot of delivery n. */
inline settle(n) {
	if
	:: slotOf[n] > 0 ->
		over[bytes[slotOf[n] - 1]] = true;
		bytes[slotOf[n] - 1] = 0;
		slotOf[n] = 0
	:: else
	fi
}

inline give_back() {
	for (n : 1 .. WORKS) {
		if
		:: slotOf[n] > 0 ->
#if MUT == 6
			over[bytes[slotOf[n] - 1]] = true;
#endif
#if MUT != 4
			bytes[slotOf[n] - 1] = 0;
#endif
			slotOf[n] = 0
		:: else
		fi
	}
	n = 0
}

#define delivered(w) (bytes[0] == w || bytes[1] == w)
#define todo(w)      (w <= WORKS && !over[w] && !delivered(w))
#define maySend      (!broken && number < WORKS && nfull(toClient) && (bytes[0] == 0 || bytes[1] == 0))

inline send(w) {
	d_step {
		slot = (bytes[0] == 0 -> 0 : 1);
		bytes[slot] = w;
		number++;
		slotOf[number] = slot + 1
	}
	toClient!joins,number,slot,w
}

proctype Host() {
	byte slotOf[WORKS + 1], number, slot, e, n;
#if MUT == 3
	bool freed;
#endif
end:	do
	:: maySend && todo(1) -> send(1)
	:: maySend && todo(2) -> send(2)
	:: maySend && todo(3) -> send(3)
	:: toHost?e,n ->
		d_step {
#if MUT == 1
			settle(n);
#else
			if :: e == joins -> settle(n) :: else fi;
#endif
			e = 0; n = 0
		}
#if MUT == 3
	:: broken && !freed -> d_step { give_back(); freed = true }
#endif
	:: hello?_ ->              /* the client has released all payloads */
		d_step { give_back(); joins++; number = 0 }
#if MUT == 3
		freed = false;
#endif
		welcome!joins
	od
}

/* The reader of payloads in the client. */
proctype Worker() {
	byte e, n, slot, work;
end:	do
	:: toClient?e,n,slot,work ->
		if
#if MUT == 2
		:: atomic { mine > 0 -> reading = true }
#else
		:: atomic { mine > 0 && e == mine -> reading = true }
#endif
			CHECK(payload_intact, bytes[slot] == work);
			CHECK(payload_intact, bytes[slot] == work);
			used[work] = 1;
			toHost!e,n;
			reading = false
		:: else
		fi;
		d_step { e = 0; n = 0; slot = 0; work = 0 }
	od
}

inline joined() { atomic { welcome?mine -> broken = false } }

/* The client's connection. */
proctype Connection() {
end:	do
	:: broken && mine == 0 && !reading -> hello!0; joined()
	:: broken && mine > 0 ->
#if MUT == 5
		mine = 0; hello!0; joined()
#else
		mine = 0; (!reading)
#endif
	od
}

proctype Network() {
end:	do
	:: !broken && mine == joins && joins < JOINS -> broken = true
	:: !broken && mine == joins -> break
	od
}

proctype Watch() {
	byte w;
end:	timeout -> atomic {
		for (w : 1 .. WORKS) { CHECK(work_arrives, used[w] == 1 || !over[w]) }
		CHECK(room_comes_back, bytes[0] == 0 && bytes[1] == 0);
		for (w : 1 .. WORKS) { CHECK(work_arrives, used[w] == 1 && over[w]) }
	}
}

init { atomic { run Host(); run Worker(); run Connection(); run Network(); run Watch() } }
