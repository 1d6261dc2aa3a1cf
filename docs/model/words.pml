/*
 * A chunk of GPU memory goes from a producer to a consumer, or two, while it is being
 * written, and is used again.
 *
 * The producer gives the chunk out as one generation after the other. Its stream
 * copies into it, then writes ready; each consumer's stream waits for the mirror that
 * its own watcher raises, reads, then writes ack. At any step a process may die, with
 * its streams, or a process's GPU may fail, which ends the streams alone: up to FAULTS
 * of these.
 *
 * small: -DGENS=2 -DFAULTS=2
 * full:  -DGENS=3 -DFAULTS=3
 * full:  -DGENS=2 -DFAULTS=1 -DCONSUMERS=2
 *
 * MUT 1 a consumer's stream reads without waiting                -> read_whole
 * MUT 2 ready is written before the copy                         -> chunk_alone
 * MUT 3 fault is written behind ready                            -> read_whole
 * MUT 4 the mirror is raised before the lease is marked          -> read_whole
 * MUT 5 a chunk is used again under the same generation          -> read_whole
 * MUT 6 closing a message releases its lease                     -> chunk_alone
 * MUT 7 a freed chunk is given out while a stream writes to it   -> chunk_alone
 * MUT 8 a line of words is used again under the same number      -> read_whole
 * MUT 9 a reader is forgotten that is not dead                   -> chunk_alone
 * MUT 10 a failed GPU of a consumer keeps its leases              -> chunk_comes_back
 * MUT 11 a dead consumer's debts are kept                         -> chunk_comes_back
 * MUT 12 a late chunk is not checked again                        -> chunk_comes_back
 * MUT 13 no watcher checks whether the producer is dead           -> nobody_waits
 * MUT 14 no consumer is told that the producer's GPU failed       -> nobody_waits
 * MUT 15 a consumer's stream waits for the producer's message     -> read_whole
 */
#include "model.h"

#ifndef GENS
#define GENS 2
#endif
#ifndef FAULTS
#define FAULTS 2
#endif

mtype = { read_whole, chunk_alone, chunk_comes_back, nobody_waits };
mtype = { FREE, USED, LATE };

#ifndef CONSUMERS
#define CONSUMERS 1
#endif

/* The chunk: the generation that it holds completely, or 0. */
byte content;
byte gen;
mtype slot = FREE;
bool writing, reading[CONSUMERS];

/* The producer's words. */
byte ready, fault;

/* Each consumer's line of words, for successive messages. */
byte mirror[CONSUMERS], ack[CONSUMERS], seq[CONSUMERS];

bool dead, failed;                          /* the producer, its GPU */
bool gone[CONSUMERS], broke[CONSUMERS];     /* a consumer, its GPU */

bool owes[CONSUMERS];                       /* the store's debt */
bool poisoned[CONSUMERS];                   /* the message's Err */
bool waiting[CONSUMERS];                    /* a stream waits */
bool watched[CONSUMERS], leased[CONSUMERS]; /* the watcher checks for it */

chan work = [GENS] of { byte };                /* the producer's stream */
chan inbox[CONSUMERS] = [GENS] of { byte };
chan jobs[CONSUMERS] = [GENS] of { byte, byte, bool }; /* generation, number, waits */

#define written(g) (ready >= (g))
#define settled (written(gen) || failed)
/* A stream uses the chunk, or will. */
#define isRead(c) (!gone[c] && !broke[c] && (reading[c] || len(jobs[c]) > 0))
#if CONSUMERS == 1
#define inUse ((!failed && (writing || len(work) > 0)) || isRead(0))
#define owed owes[0]
#else
#define inUse ((!failed && (writing || len(work) > 0)) || isRead(0) || isRead(1))
#define owed (owes[0] || owes[1])
#endif

/* The store's writer, and the emitting stage. */
proctype Producer() {
	byte sent;
	bool committed;
	{
end:	do
#if MUT == 7
	:: atomic { sent < GENS && slot != USED ->
#else
	:: atomic { sent < GENS && slot == FREE ->
#endif
		CHECK(chunk_alone, !inUse);
		sent++; slot = USED; committed = false;
#if MUT == 5
		if :: gen == 0 -> gen = 1; ready = 0 :: else fi;
#else
		gen++; ready = gen - 1;
#endif
		fault = 0 }
		if
		:: atomic { !failed -> work!gen }
			atomic {
				committed = true;
#if CONSUMERS == 2
				owes[1] = true; inbox[1]!gen;
#endif
				owes[0] = true; inbox[0]!gen
			}
		:: atomic { failed -> slot = FREE } /* it is aborted */
		fi
	:: atomic { slot == USED && committed && !owed ->
		if :: settled -> slot = FREE :: else -> slot = LATE fi }
#if MUT != 12
	:: atomic { slot == LATE && settled -> slot = FREE }
#endif
#if MUT == 9
	:: atomic { owes[0] -> owes[0] = false }
#elif MUT != 11
	:: atomic { gone[0] && owes[0] -> owes[0] = false }
#endif
#if MUT != 11 && CONSUMERS == 2
	:: atomic { gone[1] && owes[1] -> owes[1] = false }
#endif
	od
	} unless { dead }
}

proctype ProducerStream() {
	byte g;
	{
end:	do
	:: atomic { work?g -> writing = true; content = 0 }
#if MUT == 2
		ready = g;
#endif
		atomic { content = g; writing = false }
		atomic { ready = g; g = 0 }
	od
	} unless { dead || failed }
}

/* It reports the failure of its GPU once: no message follows. */
proctype ProducerWatcher() {
	{
end:	do
#if MUT != 14
	:: failed && !written(gen) ->
#if MUT == 3
		ready = gen;
		fault = gen
#else
		fault = gen;
		ready = gen
#endif
#else
	:: false
#endif
	od
	} unless { dead }
}

#define isOver(g) (written(g) || dead)

/* Opens one message after the other, has its stream wait and read, and closes it. */
proctype Consumer(byte me) {
	byte g;
	bool read;
	{
end:	do
	:: atomic { inbox[me]?_ -> owes[me] = false } /* it is not opened */
	:: atomic { inbox[me]?g ->
#if MUT == 8
		seq[me] = 1;
#else
		seq[me]++;
#endif
		poisoned[me] = false; read = true }
		if
#if MUT == 1
		:: true -> jobs[me]!g, seq[me], false
#else
		:: atomic { isOver(g) -> poisoned[me] = !written(g) || fault == g }
			if
			:: poisoned[me] -> read = false
			:: !poisoned[me] -> jobs[me]!g, seq[me], false
			fi
		:: atomic { !isOver(g) -> watched[me] = true; jobs[me]!g, seq[me], true }
#endif
		fi;
		/* It is closed. */
		if
#if MUT == 6
		:: true -> owes[me] = false
#else
		:: atomic { !read -> owes[me] = false; g = 0 }
		:: atomic { read -> leased[me] = true; read = false; g = 0 }
#endif
		fi
	od
	} unless { gone[me] }
}

proctype ConsumerStream(byte me) {
	byte g, s;
	bool waits;
	{
end:	do
	:: atomic { jobs[me]?g, s, waits -> reading[me] = true; waiting[me] = waits }
		if
#if MUT == 15
		:: waits && written(g) -> waiting[me] = false
#else
		:: waits && mirror[me] >= s -> waiting[me] = false
#endif
		:: !waits
		fi;
		CHECK(read_whole, content == g || poisoned[me]); /* its first byte */
		CHECK(read_whole, content == g || poisoned[me]); /* and its last */
		reading[me] = false;
		atomic { ack[me] = s; g = 0; s = 0; waits = false }
	od
	} unless { gone[me] || broke[me] }
}

proctype ConsumerWatcher(byte me) {
	bool complete;
	{
end:	do
#if MUT == 13
	:: watched[me] && (written(gen) || broke[me]) ->
#else
	:: watched[me] && (isOver(gen) || broke[me]) ->
#endif
#if MUT == 4
		mirror[me] = seq[me];
#endif
		complete = written(gen);
		if :: !complete || fault == gen -> poisoned[me] = true :: else fi;
		atomic { mirror[me] = seq[me]; watched[me] = false; complete = false }
#if MUT == 10
	:: atomic { leased[me] && ack[me] >= seq[me] -> leased[me] = false; owes[me] = false }
#else
	:: atomic { leased[me] && (ack[me] >= seq[me] || broke[me]) -> leased[me] = false; owes[me] = false }
#endif
	od
	} unless { gone[me] }
}

proctype Trouble() {
	byte n;
	do
	:: atomic { n < FAULTS && !dead -> n++; dead = true }
	:: atomic { n < FAULTS && !failed && !dead -> n++; failed = true; writing = false }
	:: atomic { n < FAULTS && !gone[0] -> n++; gone[0] = true }
	:: atomic { n < FAULTS && !gone[0] && !broke[0] -> n++; broke[0] = true }
#if CONSUMERS == 2
	:: atomic { n < FAULTS && !gone[1] -> n++; gone[1] = true }
#endif
	:: break
	od
}

proctype Watch() {
end:	timeout -> atomic {
		CHECK(nobody_waits, !waiting[0] || gone[0] || broke[0]);
#if CONSUMERS == 2
		CHECK(nobody_waits, !waiting[1] || gone[1] || broke[1]);
#endif
		CHECK(chunk_comes_back, dead || slot == FREE)
	}
}

init {
	atomic {
		run Producer(); run ProducerStream(); run ProducerWatcher();
		run Consumer(0); run ConsumerStream(0); run ConsumerWatcher(0);
#if CONSUMERS == 2
		run Consumer(1); run ConsumerStream(1); run ConsumerWatcher(1);
#endif
		run Trouble(); run Watch()
	}
}
