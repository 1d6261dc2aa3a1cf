/*
 * Values on a shelf: taken without asking, by whoever gets a lock.
 *
 * An owner puts values on its shelf of SLOTS slots, up to NUMBERS of them, all under
 * one key, and tells the host some time. Two readers get GETS each: by number from the
 * shelf, if they get its lock and the slot still holds it, and else, or by key, from the
 * host. They make the lock of what they are done with a shared one, and the owner, if it
 * sees that, uses the room again. They tell the host of it some time, and before that
 * perhaps that they have it; it hears of that and of puts in any order, and sweeps when it
 * likes. Any of the three dies at any step, up to DEATHS of them. What a dead reader had
 * locked stays locked until the host, which keeps a duplicate, has seen to it.
 *
 * small: -DSLOTS=1 -DNUMBERS=2 -DGETS=1 -DDEATHS=1
 * full:  -DSLOTS=1 -DNUMBERS=2 -DGETS=1 -DDEATHS=3
 * full:  -DSLOTS=1 -DNUMBERS=2 -DGETS=2 -DDEATHS=2
 * full:  -DSLOTS=2 -DNUMBERS=3 -DGETS=1 -DDEATHS=2
 * full:  -DSLOTS=2 -DNUMBERS=3 -DGETS=2 -DDEATHS=1
 *
 * MUT 1 a reader gives the lock up when it is done with a value -> gone_is_gone
 * MUT 2 a reader looks at the slot before it locks, not after   -> gone_is_gone
 * MUT 3 a reader does not look at the slot                      -> gone_is_gone
 * MUT 4 a reader gives up the lock of what it does not want     -> room_comes_back
 * MUT 5 the host hands out without a claim                      -> value_alone
 * MUT 6 the host sweeps without a claim                         -> payload_intact
 * MUT 7 the host gives its claim up when it has given back      -> gone_is_gone
 * MUT 8 what a reader is done with, the host does not lock      -> gone_is_gone
 * MUT 9 what it is done with before it is placed, neither       -> payload_intact
 * MUT 10 what a dead one had, the host does not lock            -> payload_intact
 * MUT 11 what a dead one had and has not said is left as it is  -> room_comes_back
 * MUT 12 what a dead one had that is not placed yet lies on     -> room_comes_back
 * MUT 13 what a dead one has said of what is not placed is kept -> room_comes_back
 * MUT 14 what is taken before it is placed is forgotten         -> room_comes_back
 * MUT 15 who is done with a value must have said that it has it -> room_comes_back
 * MUT 16 the host does not wait for what is published           -> value_is_found
 * MUT 17 Put returns before its number is published             -> value_is_found
 * MUT 18 the owner publishes, and does not tell the host        -> nobody_waits
 * MUT 19 with a dead owner's last value the host's claims go    -> gone_is_gone
 * MUT 20 a reader shares the lock while it reads                -> payload_intact
 * MUT 21 the owner uses the room again of what is only locked   -> payload_intact
 * MUT 22 ... and clears the slot before the host gives it back  -> payload_intact
 */
#include "model.h"

#ifndef SLOTS
#define SLOTS 2
#endif
#ifndef NUMBERS
#define NUMBERS 3
#endif
#ifndef GETS
#define GETS 1
#endif
#ifndef DEATHS
#define DEATHS 2
#endif

mtype = {
	value_alone, payload_intact, gone_is_gone,
	value_is_found, room_comes_back, nobody_waits
};
mtype = { took, over, finish, fetch };

#define OWNER 2                 /* the readers are 0 and 1 */
#define BIT(r) (1 << (r))
#define HOST   4
#define OWNERS 8
#define IN(n)  ((n) % SLOTS)    /* the slot of a number, and its room */

/* Shared memory, which the owner alone writes, and the locks in the kernel. */
byte slot[SLOTS], bytes[SLOTS], published;
byte locked[NUMBERS + 1];       /* whose descriptions have a lock; several if they share it */
bool shared[NUMBERS + 1];       /* which they do: it is read no more */

byte known;                     /* the last number that Put returned */
byte reads[NUMBERS + 1];        /* who has it, to read it */
bool gone[NUMBERS + 1];         /* was given back, and is nobody's to get */

bool dead[3];
bool left[3];                   /* the host has seen to its death */

chan fromOwner = [2] of { byte };
chan toOwner = [NUMBERS] of { byte };
chan up[2] = [2] of { mtype, byte };
chan down[2] = [1] of { byte };

/* The host's: its entries, and those who wait for an answer. */
mtype = { lies, handed, taken, out, back };
mtype is[NUMBERS + 1];          /* 0: not placed yet */
byte who[NUMBERS + 1];          /* ... it was handed to, or has taken it */
byte early[NUMBERS + 1];        /* 0: not taken before it was placed; r + 1: by r */
#define BACK 3                  /* ... and was given back */
byte held;                      /* what lies under the key */
byte last;                      /* placed */
bool asks[2];
byte number[2], upTo[2];
byte wants[2];                  /* what had been put when it asked */

/*
 * Put, and what was returned. To receive that and to clear the slot is one step: in
 * between it is as if the message had not been read. Who has the lock of a number gives
 * it up when the slot does not hold that any more; nobody can tell when, so it is at once.
 */
#define over_at(n) (slot[IN(n)] == n && bytes[IN(n)] == n && (shared[n] || MUT == 21 && locked[n] != 0))

#define RECLAIM(n) :: d_step { over_at(n) -> bytes[IN(n)] = 0; locked[n] = locked[n] | OWNERS; FORGET(n) }

#if MUT == 22
#define FORGET(n) slot[IN(n)] = 0; unlock(n)
#else
#define FORGET(n) skip
#endif

#define unlock(n) locked[n] = 0; shared[n] = false

proctype Owner() {
	byte n, next = 1, told = 1;
	{
end:	do
#if MUT == 17
	:: next <= NUMBERS && slot[IN(next)] == 0 ->
		d_step { bytes[IN(next)] = next; slot[IN(next)] = next; known = next };
		d_step { published = next; next++ }
#else
	:: d_step { next <= NUMBERS && slot[IN(next)] == 0 -> /* nobody knows the number before */
		bytes[IN(next)] = next;
		slot[IN(next)] = next;
		published = next;
		known = next;
		next++ }
#endif
#if MUT == 18
	:: told < next -> told++
#else
	:: atomic { told < next && nfull(fromOwner) -> fromOwner!told; told++ }
#endif
	:: atomic { toOwner?n -> slot[IN(n)] = 0; unlock(n); n = 0 }
	RECLAIM(1)
	RECLAIM(2)
	RECLAIM(NUMBERS)        /* is 2 or 3 */
	od
	} unless { d_step { dead[OWNER] -> n = 0; next = 0; told = 0 } }
}

/* The reader has it. */
inline get(r, n) {
	CHECK(gone_is_gone, !gone[n]);
	CHECK(value_alone, reads[n] == 0);
	CHECK(payload_intact, bytes[IN(n)] == n);
	reads[n] = BIT(r)
}

inline ask(r, n) {
	atomic { up[r]!fetch,n -> wants[r] = (n == 0 -> known : n) }
	down[r]?n;
	if
	:: n > 0 -> atomic { up[r]!finish,n ->
		CHECK(payload_intact, bytes[IN(n)] == n);
		reads[n] = 0;
		gone[n] = true }
	:: else
	fi
}

#define TELL(r, n) :: atomic { done_ & BIT(n) -> up[r]!over,n; done_ = done_ & ~BIT(n) }

proctype Reader(byte r) {
	byte n, gets, done_;    /* the host does not know of that */
	bool there;
	{
end:	do
	:: atomic { gets < GETS && known > 0 -> gets++;
		if
		:: n = 0
		:: n = known
		:: known > 1 -> n = known - 1
		:: known > 2 -> n = known - 2
		fi }
#if MUT == 2
		there = n > 0 && slot[IN(n)] == n;
#endif
		if
		:: n == 0 -> ask(r, n)
		:: atomic { n > 0 && locked[n] == 0 -> locked[n] = BIT(r) }
#if MUT == 3
			there = true;
#elif MUT != 2
			there = slot[IN(n)] == n;
#endif
			if
			:: d_step { there -> get(r, n);
#if MUT == 20
				shared[n] = true
#endif
				}
				if :: up[r]!took,n :: true fi;
				d_step {
					CHECK(payload_intact, bytes[IN(n)] == n);
					reads[n] = 0;
					gone[n] = true;
					done_ = done_ | BIT(n);
					shared[n] = true;
#if MUT == 1
					unlock(n)
#endif
				}
#if MUT == 4
			:: d_step { there -> locked[n] = 0 }    /* it has looked at the tag too late */
#endif
			:: d_step { !there -> locked[n] = 0 }
				ask(r, n)
			fi
		:: n > 0 && locked[n] != 0 -> ask(r, n)
		fi;
		d_step { n = 0; there = false }
	TELL(r, 1)
	TELL(r, 2)
	TELL(r, NUMBERS)        /* is 2 or 3 */
	od
	} unless { d_step { dead[r] -> n = 0; gets = 0; done_ = 0; there = false; if :: down[r]?n -> n = 0 :: empty(down[r]) fi } }
}

/*
 * The host, which does all under the lock of its table. What others see of it are the
 * locks on the shelf, so that all it does about one of these is one step.
 */

inline give_back(n) {
	is[n] = back;
	who[n] = 0;
	toOwner!n;
#if MUT == 7
	locked[n] = locked[n] & ~HOST;
	if :: locked[n] == 0 -> shared[n] = false :: else fi
#endif
}

/* What is claimed is given back; somebody else has what is not, and will say so. */
inline take_back(n) {
	if
	:: locked[n] == 0 -> locked[n] = HOST; gone[n] = true; give_back(n)
	:: else -> is[n] = out
	fi
}

/* Whether the lock goes over from the reader to the host, which shares it first. */
#define goesOver(r, n) (shared[n] || (locked[n] & ~BIT(r)) == 0)

/* Both of them share it, but for a mistake. */
#define take_over(n, mistake) locked[n] = locked[n] | (mistake -> 0 : HOST); shared[n] = true

inline hand_over(r, n, mistake) {
	if
	:: goesOver(r, n) -> take_over(n, mistake); give_back(n)
	:: else -> is[n] = out; who[n] = 0
	fi
}

/* The reader has not said that it had it. */
inline done_with(r, n, mistake) {
	if
	:: goesOver(r, n) ->
		if :: held == n -> held = 0 :: else fi;
		hand_over(r, n, mistake)
	:: else
	fi
}

inline done_early(r, n) {
	if
	:: goesOver(r, n) -> early[n] = BACK; take_over(n, MUT == 9)
	:: else -> early[n] = 0
	fi
}

/* What a dead owner has not told never comes. */
#define comes (!left[OWNER])

inline place() {
	last = n;
	if
	:: held > 0 -> take_back(held); held = 0
	:: else
	fi;
	if
	:: early[n] == 0 -> is[n] = lies; held = n
	:: early[n] == BACK -> give_back(n)
	:: else -> is[n] = taken; who[n] = early[n] - 1
	fi;
	early[n] = 0
}

inline handle() {
	if
	:: how == took ->
		if
		:: is[n] == lies || is[n] == out || is[n] == taken ->
			is[n] = taken;
			who[n] = r;
			if :: held == n -> held = 0 :: else fi
#if MUT != 14
		:: is[n] == 0 && comes -> early[n] = r + 1
#endif
		:: else
		fi
	:: how == over ->
		if
		:: is[n] == taken && who[n] == r -> hand_over(r, n, MUT == 8)
#if MUT != 15
		:: is[n] == lies || is[n] == out -> done_with(r, n, MUT == 8)
#endif
#if MUT != 14
		:: is[n] == 0 && comes -> done_early(r, n)
#endif
		:: else
		fi
	:: how == finish -> give_back(n)
	:: how == fetch -> asks[r] = true; number[r] = n; upTo[r] = published
	fi
}

#if MUT == 16
#define ready(r) asks[r]
#else
#define ready(r) (asks[r] && (last >= upTo[r] || left[OWNER]))
#endif

inline answered() {
	asks[r] = false; number[r] = 0; upTo[r] = 0; wants[r] = 0
}

inline answer() {
	n = number[r];
	if
	:: n == 0 || n == held -> n = held
	:: else -> n = 0
	fi;
	if
	:: n > 0 && (locked[n] == 0 || MUT == 5) ->
		CHECK(value_alone, locked[n] == 0 && reads[n] == 0);
		locked[n] = HOST;
		is[n] = handed;
		who[n] = r;
		reads[n] = BIT(r);
		held = 0
	:: n > 0 && !(locked[n] == 0 || MUT == 5) -> is[n] = out; held = 0; n = 0
	:: else
	fi;
	CHECK(value_is_found, n >= wants[r] || (n == 0 && (left[OWNER] || is[wants[r]] != 0 && is[wants[r]] != lies)));
	down[r]!n;
	answered()
}

#define mayLeave(r) (dead[r] && !left[r] && empty(up[r]))
#define has(r, n)   (locked[n] & BIT(r))

/* The process of a reader is dead. Nobody else can get what it had locked until the
 * host has closed its duplicate. */
inline leave() {
	left[r] = true;
	answered();
	for (n : 1 .. NUMBERS) {
		if
		:: is[n] == handed && who[n] == r -> give_back(n)
		:: is[n] == taken && who[n] == r -> hand_over(r, n, MUT == 10)
#if MUT != 11
		:: (is[n] == lies || is[n] == out) && has(r, n) -> done_with(r, n, MUT == 10)
#endif
#if MUT != 13
		:: is[n] == 0 && comes && early[n] == r + 1 -> done_early(r, n)
#endif
#if MUT != 12
		:: is[n] == 0 && comes && early[n] == 0 && n <= published && has(r, n) -> done_early(r, n)
#endif
		:: else
		fi;
		if
		:: left[OWNER]  /* what was never placed stays locked, like the rest */
		:: else ->
			locked[n] = locked[n] & ~BIT(r);
			if :: locked[n] == 0 -> shared[n] = false :: else fi
		fi
	}
	n = 0
}

#define settled(n) (is[n] == 0 || is[n] == back)
#define allSettled (settled(1) && settled(2) && settled(NUMBERS))
#define hasClaims  ((locked[1] | locked[2] | locked[NUMBERS]) & HOST)

proctype Host() {
	byte n, r;
	mtype how;
end:	do
	:: d_step { fromOwner?n -> place(); n = 0 }
	:: d_step { nempty(up[0]) -> up[0]?how,n; handle(); how = 0; n = 0 }
	:: d_step { nempty(up[1]) -> up[1]?how,n; r = 1; handle(); how = 0; n = 0; r = 0 }
	:: d_step { ready(0) -> answer(); n = 0 }
	:: d_step { ready(1) -> r = 1; answer(); n = 0; r = 0 }
	:: d_step { mayLeave(0) -> leave() }
	:: d_step { mayLeave(1) -> r = 1; leave(); r = 0 }
	:: d_step { held > 0 -> /* a sweep, or somebody cleans up */
#if MUT == 6
		give_back(held);
#else
		take_back(held);
#endif
		held = 0 }
	:: d_step { dead[OWNER] && !left[OWNER] && empty(fromOwner) ->
		if
		:: held > 0 -> take_back(held); held = 0
		:: else
		fi;
		for (n : 1 .. NUMBERS) { early[n] = 0 }
		n = 0;
		left[OWNER] = true }
#if MUT == 19
	:: d_step { left[OWNER] && allSettled && hasClaims ->
		for (n : 1 .. NUMBERS) { locked[n] = locked[n] & ~HOST }
		n = 0 }
#endif
	od
}

/* What it had goes with it. */
inline stop_reading(x) {
	for (n : 1 .. NUMBERS) {
		if :: reads[n] & BIT(x) -> reads[n] = 0; gone[n] = true :: else fi
	}
	n = 0
}

#define DIES(x, may) :: atomic { deaths < DEATHS && !dead[x] && may -> deaths++; dead[x] = true; stop_reading(x) }

proctype Death() {
	byte deaths, n;
	do
	DIES(0, true)
	DIES(1, dead[0])        /* the readers are alike */
	DIES(OWNER, true)
	:: break
	od
}

#define waits(r) (!dead[r] && wants[r] > 0)

proctype Watch() {
	byte n;
end:	timeout -> atomic {
		CHECK(nobody_waits, !waits(0) && !waits(1));
		for (n : 1 .. NUMBERS) { CHECK(room_comes_back, settled(n) && early[n] == 0) }
		CHECK(room_comes_back, dead[OWNER] || (slot[0] == 0 && slot[SLOTS - 1] == 0))
	}
}

init {
	atomic {
		run Owner(); run Reader(0); run Reader(1); run Host();
		run Death(); run Watch()
	}
}
