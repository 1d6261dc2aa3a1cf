/*
 * A payload is passed on by reference, and those who passed it on die.
 *
 * An owner gives a payload to a node, which passes it on to a second one, and
 * with WIDE to a third one too; the second may pass it on to the third. Any of the
 * four dies, at any step, up to DEATHS of them. Each lets go of what it has when
 * it has read it and those that it gave it to have let go. What it gave to one
 * that is dead it takes back at once, unless that has said that it passes it on:
 * then when the host says that nobody reads any more what the dead one had. With
 * GIVEUP the owner, as the host does, gives up the first node, which lives and reads
 * on: it hangs up, takes in what that has said, and hears nothing of it any more.
 *
 * small: -DDEATHS=2
 * small: -DDEATHS=2 -DGIVEUP=1
 * full:  -DDEATHS=4
 * full:  -DDEATHS=3 -DGIVEUP=1
 * full:  -DDEATHS=3 -DWIDE=1
 *
 * MUT 1 lent is said behind the frame                          -> payload_intact
 * MUT 2 what was lent is taken back at the death as well       -> payload_intact
 * MUT 3 a death is looked at before what the dead one said     -> payload_intact
 * MUT 4 a forwarder lets go when it has sent                   -> payload_intact
 * MUT 5 the host asks who knew the dead one, and nobody beyond -> payload_intact
 * MUT 6 clear is said before the lane is taken in              -> payload_intact
 * MUT 7 clear is said while others read what was passed on     -> payload_intact
 * MUT 8 clear is counted for all that its sender knew          -> payload_intact
 * MUT 9 the first clear is enough                              -> payload_intact
 * MUT 10 a node that is gone is asked as well                  -> room_comes_back
 * MUT 11 a death does not have the host look again             -> nobody_waits
 * MUT 12 clear is said by those alone who were given something -> nobody_waits
 * MUT 13 the host tells the owner alone                        -> nobody_waits
 * MUT 14 what was lent waits for the finish of a dead one      -> nobody_waits
 * MUT 15 a forwarder keeps what came back from the dead        -> room_comes_back
 * MUT 16 the host tells all but the owner                      -> room_comes_back
 * MUT 17 what a node had said is not taken in when it is given up -> payload_intact
 * MUT 18 a node that lent does not look whether it is given up -> payload_intact
 */
#include "model.h"

#ifndef DEATHS
#define DEATHS 4
#endif
#ifndef GIVEUP
#if MUT == 17 || MUT == 18
#define GIVEUP 1
#else
#define GIVEUP 0
#endif
#endif
#ifndef WIDE
#define WIDE 0
#endif

mtype = { payload_intact, room_comes_back, nobody_waits };
mtype = { frame, lent, finish };

#define NODES 4
#define OWNER 0
#define WAYS  (3 + WIDE)        /* 0: 0 to 1, 1: 1 to 2, 2: 2 to 3, 3: 1 to 3 */
#define giver(w) ((w) == 3 -> 1 : (w))
#define taker(w) ((w) == 3 -> 3 : (w) + 1)

/* Two lanes for each way, which outlive who writes them. */
chan there[4] = [1] of { mtype };
chan back[4] = [2] of { mtype };

bool dead[NODES];
bool given[4];                  /* and not given back, as the giver knows it */
bool hungUp[4];                 /* the giver has seen the taker's death */
bool has[4];                    /* the taker reads it, or knows that others may */
bool over;                      /* the owner has hung up on the first node, which lives */
bool deaf;                      /* ... and has taken in all that this had said */

bool cleared[NODES];            /* the host has said so */
bool said[NODES * NODES];       /* clear, of whom and by whom */

#define readable given[0]       /* the owner has not freed it; it is there if it is dead */

/* The host looks at once, whenever something is said and somebody dies: later
 * would only be safer. What it uses to look is 0 in between. */
byte x, i, w;
bool group[NODES], ok, all, any;

#if MUT == 8
inline has_said(who, by) { ok = said[by] || said[NODES + by] || said[2 * NODES + by] || said[3 * NODES + by] }
#else
inline has_said(who, by) { ok = said[who * NODES + by] }
#endif

/* Whether b, who knew a of the group, has let go of what a had. */
inline ask(a, b) {
	if
	:: group[a] && !cleared[b] && (!dead[b] || MUT == 10) ->
		has_said(a, b);
		all = all && ok;
		any = any || ok
	:: else
	fi
}

inline widen(a, b) {
	if
	:: group[a] && dead[b] && !cleared[b] -> group[b] = true
	:: else
	fi
}

#if MUT == 9
#define enough any
#else
#define enough all
#endif

inline look_at(x) {
	group[x] = true; all = true;
#if MUT != 5 && MUT != 10
	for (i : 1 .. NODES - 1) {
		for (w : 0 .. WAYS - 1) { widen(giver(w), taker(w)); widen(taker(w), giver(w)) }
	}
#endif
	for (w : 0 .. WAYS - 1) { ask(giver(w), taker(w)); ask(taker(w), giver(w)) }
	for (i : 0 .. NODES - 1) {
		if :: group[i] && enough -> cleared[i] = true :: else fi;
		group[i] = false
	}
	ok = false; all = false; any = false; i = 0; w = 0
}

inline look() {
	d_step {
		for (x : 0 .. NODES - 1) {
			if :: dead[x] && !cleared[x] -> look_at(x) :: else fi
		}
		x = 0
	}
}

inline clear(who, by) {
	said[who * NODES + by] = true;
	look()
}

#if MUT == 15
#define passed(w) ((w == 0 && (given[1] || given[3] || hungUp[1])) || (w == 1 && given[2]))
#else
#define passed(w) ((w == 0 && (given[1] || given[3])) || (w == 1 && given[2]))
#endif

/* The giver's end of a way. */
proctype Giver(byte way; byte me; byte peer) {
	bool isLent;
	{
end:	do
	:: atomic { !(way == 0 && deaf) && back[way]?[lent] -> back[way]?lent; isLent = true }
	:: atomic { !(way == 0 && deaf) && back[way]?[finish] -> back[way]?finish;
		if :: !(way == 0 && over) -> given[way] = false :: else fi }
#if GIVEUP
	:: atomic { way == 0 && !over && !dead[peer] -> over = true }
#if MUT == 17
	:: atomic { way == 0 && over && !deaf -> deaf = true }
#else
	:: atomic { way == 0 && over && !deaf && empty(back[way]) -> deaf = true }
#endif
#endif
#if MUT == 3
	:: atomic { dead[peer] && !hungUp[way] ->
#else
	:: atomic { dead[peer] && !hungUp[way] && (empty(back[way]) || way == 0 && deaf) ->
#endif
		hungUp[way] = true;
#if MUT != 12
		clear(peer, me);
#endif
#if MUT == 2
		given[way] = false
#else
		if :: !isLent -> given[way] = false :: else fi
#endif
		}
#if MUT != 14
#if MUT == 13
	:: atomic { hungUp[way] && given[way] && cleared[peer] && me == OWNER -> given[way] = false }
#elif MUT == 16
	:: atomic { hungUp[way] && given[way] && cleared[peer] && me != OWNER -> given[way] = false }
#else
	:: atomic { hungUp[way] && given[way] && cleared[peer] -> given[way] = false }
#endif
#endif
	od
	} unless { dead[me] }
}

/* Says that it passes it on, and then looks whether the giver has hung up. */
#define late (way == 0 && over && MUT != 18)
inline lend() {
	if
	:: !isLent && !late -> back[way]!lent; isLent = !late
	:: else
	fi
}

/* Passes it on, or does not. Who knows that the giver is dead, or has hung up, has nobody
 * to tell, and sends a copy. */
inline pass(onto) {
	if
	:: !ended ->
#if MUT == 1
		isLent = true;
#else
		lend();
#endif
		if
		:: atomic { !hungUp[onto] && isLent -> given[onto] = true; there[onto]!frame }
		:: hungUp[onto] || !isLent
		fi;
#if MUT == 1
		back[way]!lent
#endif
	:: true
	fi
}

#if MUT == 7
#define reads(w) (has[w] && !handled)
#else
#define reads(w) has[w]
#endif

/* The taker's end of a way. */
proctype Taker(byte way; byte peer; byte me) {
	bool ended, isLent, handled;
	{
end:	do
	:: atomic { there[way]?frame -> has[way] = true; CHECK(payload_intact, readable) }
		if
		:: way == 0 ->
			pass(1);
#if WIDE
			pass(3)
#endif
		:: way == 1 -> pass(2)
		:: way > 1
		fi;
		atomic { CHECK(payload_intact, readable); handled = true }
#if MUT == 4
	:: atomic { has[way] && handled -> has[way] = false; handled = false; if :: !ended -> back[way]!finish :: else fi }
#else
	:: atomic { has[way] && handled && !passed(way) -> has[way] = false; handled = false; if :: !ended -> back[way]!finish :: else fi }
#endif
#if MUT == 6
	:: atomic { dead[peer] && !ended -> ended = true }
#else
	:: atomic { dead[peer] && !ended && empty(there[way]) -> ended = true }
#endif
	:: atomic { ended && !reads(way) && !said[peer * NODES + me] -> clear(peer, me) }
	od
	} unless { dead[me] }
}

#if MUT == 11
#define DIES(n) :: atomic { deaths < DEATHS && !dead[n] -> deaths++; dead[n] = true }
#else
#define DIES(n) :: atomic { deaths < DEATHS && !dead[n] -> deaths++; dead[n] = true; look() }
#endif

proctype Death() {
	byte deaths;
	do
	DIES(0)
	DIES(1)
	DIES(2)
	DIES(3)
	:: break
	od
}

proctype Watch() {
end:	timeout -> atomic {
		CHECK(nobody_waits, dead[1] || !(given[1] || given[3]));
		CHECK(nobody_waits, dead[2] || !given[2]);
		CHECK(room_comes_back, dead[OWNER] || !given[0] || over && !dead[1])
	}
}

init {
	atomic {
		given[0] = true;
		there[0]!frame;
		run Giver(0, 0, 1); run Taker(0, 0, 1);
		run Giver(1, 1, 2); run Taker(1, 1, 2);
		run Giver(2, 2, 3); run Taker(2, 2, 3);
#if WIDE
		run Giver(3, 1, 3); run Taker(3, 1, 3);
#endif
		run Death(); run Watch()
	}
}
