/*
 * The writer dies: committed work is still read, other work fails.
 *
 * One writer puts WORKS objects, one slot each: reserve, fill, commit, write a
 * frame, publish it. It dies at any step, or not at all, and between puts it
 * evicts objects without debts and pins. One reader node takes frames from the
 * lane, holds their objects for any time, and pulls by handles of its own, which
 * it guesses for reservations too. It learns of the death some time after: then it
 * takes the remaining frames of the lane, and fails the rest.
 *
 * small: -DWORKS=2
 * full:  -DWORKS=4
 *
 * MUT 1 a reader takes a reserved slot for an object           -> payload_intact
 * MUT 2 the frame is sent before the commit                    -> frame_names_an_object
 * MUT 3 the frame is published before it is written            -> frame_names_an_object
 * MUT 4 a reader that learns of the death leaves the lane unread -> committed_work_arrives
 * MUT 5 a reader looks for frames, and then learns of the death -> committed_work_arrives
 * MUT 6 uncommitted work is not failed                         -> work_ends_once
 * MUT 7 work that was taken is failed too                      -> work_ends_once
 * MUT 8 a dead writer's memory is used again                   -> payload_intact
 * MUT 9 a reader waits for a dead writer to finish its eviction -> nobody_waits_for_the_dead
 */
#include "model.h"

#ifndef WORKS
#define WORKS 2
#endif

mtype = {
	payload_intact, frame_names_an_object, committed_work_arrives,
	work_ends_once, nobody_waits_for_the_dead
};

/* Slot w is for work w; slot 0 is not used. A payload is whole at 2. */
#define SLOTS (WORKS + 1)

byte word[SLOTS], bytes[SLOTS], frame[SLOTS], published; /* written by the writer */
byte pin[SLOTS];                                    /* written by the reader */
bool settled[SLOTS];

bool dead;              /* the kernel knows it */
bool told;              /* the reader's node has seen the pidfd */
byte committed;         /* for the promises alone: works that the writer has published */
byte taken[SLOTS], failed[SLOTS];
bool waits;

inline put(w) {
	word[w] = RESERVED(w);
	bytes[w] = 1;
#if MUT == 2
	frame[w] = w;
	d_step { published++; committed++ }
	bytes[w] = 2;
	word[w] = LIVE(w)
#else
	bytes[w] = 2;
	word[w] = LIVE(w);
#if MUT == 3
	d_step { published++; committed++ }
	frame[w] = w
#else
	frame[w] = w;
	d_step { published++; committed++ }
#endif
#endif
}

proctype Writer() {
	byte next = 1, old = 1;
	{
	do
	:: next <= WORKS -> put(next); next++
	:: old < next && word[old] == LIVE(old) && settled[old] ->
		word[old] = CLOSING(old);
		if
		:: pin[old] > 0 -> word[old] = LIVE(old)
		:: else -> word[old] = EMPTY; bytes[old] = 0; old++
		fi
	:: next > WORKS -> break
	od
	} unless { dead }
}

/* The kernel: a death, and some time later the pidfd is readable. */
proctype Kernel() {
	if
	:: dead = true; told = true
	:: skip
	fi
}

#if MUT == 8
/* MUT 8: a process that takes a dead writer's segments for free. */
proctype Reuse() {
	byte w;
	if
	:: told -> for (w : 1 .. WORKS) { bytes[w] = 0 }
	:: timeout
	fi
}
#endif

inline use(w) { CHECK(payload_intact, bytes[w] == 2); CHECK(payload_intact, bytes[w] == 2) }

/* A delivery: the debt holds it, and the directory must agree with the frame. */
inline take(w) {
	w = frame[head + 1];
	CHECK(frame_names_an_object, w == head + 1 && (word[w] == LIVE(w) || word[w] == CLOSING(w)));
	d_step { head++; taken[w]++ }
	use(w);
	settled[w] = true
}

#if MUT == 1
#define present(w) (word[w] == LIVE(w) || word[w] == RESERVED(w))
#else
#define present(w) (word[w] == LIVE(w))
#endif

#if MUT == 9
#define owner_stalled false
#else
#define owner_stalled told
#endif

/* A pull by a handle that charged no debt. */
inline pull(w) {
	pin[w]++;
	waits = true;
	if
	:: present(w) -> use(w)
	:: word[w] == CLOSING(w) && owner_stalled
	:: word[w] != CLOSING(w) && !present(w)
	fi;
	waits = false;
	pin[w]--
}

inline fail_the_rest() {
	for (w : 1 .. WORKS) {
		if
#if MUT == 7
		:: true -> failed[w]++
#elif MUT != 6
		:: taken[w] == 0 -> failed[w]++
#endif
		:: else
		fi
	}
}

proctype Reader() {
	byte head, w, end_, pulls;
	do
	:: head < published -> take(w); w = 0
	:: pulls < 1 -> pulls++;
		if :: w = 1 :: w = WORKS fi;
		pull(w);
		w = 0
	:: head == WORKS -> break
#if MUT == 4
	:: told -> break
#elif MUT == 5
	:: end_ = published; if :: told -> break :: else fi
#else
	:: told -> end_ = published; break /* nothing more is published */
#endif
	od;
#if MUT != 4
	do
	:: head < end_ -> take(w)
	:: else -> break
	od;
#endif
	fail_the_rest()
}

proctype Watch() {
	byte w;
end:	timeout -> atomic {
		CHECK(nobody_waits_for_the_dead, !waits);
		for (w : 1 .. WORKS) {
			CHECK(committed_work_arrives, w > committed || taken[w] == 1);
			CHECK(work_ends_once, taken[w] + failed[w] == 1)
		}
	}
}

init {
	atomic {
		run Writer(); run Kernel(); run Reader(); run Watch()
#if MUT == 8
		; run Reuse()
#endif
	}
}
