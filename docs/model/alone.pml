/*
 * The host is gone and a consumer goes on without it: it learns of each stream
 * that may come past the host whether more comes, and nobody waits for ever.
 *
 * A producer sends DELIVERIES payloads to a consumer, as in direct.pml. Both are in
 * one process, or in a circle of processes: neither leaves while the other has
 * work, so that no connection ends by itself. FAULTS times the host dies, or gives up the
 * consumer alone and ends the request; the producer's task fails, or
 * its process dies. Without the host the consumer asks the producer for
 * the stream (await). One that is over without its length having been said, or that
 * will not go this way, is cut; of one that goes on, the length is said at its end.
 *
 * A stream may end before it is whole if nothing of it went past the host: its
 * producer sends what follows to the host, which is gone. Between peers of version 4
 * there is neither await nor cut; direct.pml has what holds there.
 *
 * small: -DDELIVERIES=4 -DFAULTS=2
 * full:  -DDELIVERIES=6 -DFAULTS=3
 *
 * MUT 1 a producer whose task fails says nothing               -> task_ends
 * MUT 2 a producer whose request is over says nothing          -> task_ends
 * MUT 3 nobody answers for what is over, or goes another way   -> task_ends
 * MUT 4 the consumer does not ask                              -> task_ends
 * MUT 5 the length is not said when nothing went past the host -> task_ends
 * MUT 6 what the host had not relayed is awaited               -> task_ends
 * MUT 7 the consumer takes what has come for all               -> stream_is_whole
 * MUT 8 a cut is taken for the end                             -> stream_is_whole
 * MUT 9 a stream goes past the host behind the answer          -> stream_is_whole
 * MUT 10 a cut ends what is known to be whole                  -> failure_has_a_cause
 */
#include "model.h"

#ifndef DELIVERIES
#define DELIVERIES 4
#endif
#ifndef FAULTS
#define FAULTS 2
#endif
#define N DELIVERIES

mtype = { task_ends, stream_is_whole, failure_has_a_cause };
mtype = { put, deliver, expect, expecting, direct, streamed, cut, await, end_, ended, failed, over };

chan toHost = [N + 2] of { mtype, byte };     /* from the producer */
chan toProducer = [2] of { mtype };
chan toConsumer = [N + 4] of { mtype, byte };
chan fromConsumer = [1] of { mtype };
chan lane = [N + 3] of { mtype, byte };       /* from the producer to the consumer */
chan back = [1] of { mtype };                 /* the other one */

/* How many of the last words were not brought to where they are read. */
byte lostToProducer, lostToConsumer, lostInLane;

byte faults;
bool deadH, deadP;
bool givenUp;            /* the consumer, by the host */
bool broke;              /* the producer's task failed, or its request was over */

byte through;            /* deliveries that did not go past the host */
byte past;               /* ... and that did */

bool alone;              /* the consumer is */
bool dropped, done;      /* it has failed, or handled all */
bool toldOver;           /* it has failed because the host said so */
byte next;               /* the delivery that it waits for */
byte relayed;            /* how many it has from the host */

/* ---- the producer */

/* Who does not ask learns from the host. */
inline say_cut() {
	if :: routed && asked -> lane!cut,0 :: else fi
}

proctype Producer() {
	byte sent, from;
	bool routed, stop, whole, asked;
	{
end:	do
	:: atomic { sent < N && !stop ->
		if
		:: routed -> lane!deliver,sent; past++
		:: !routed && !deadH -> toHost!put,sent; through++
		:: !routed && deadH -> through++
		fi;
		sent++ }
	:: atomic { sent == N && !stop ->
		stop = true; whole = true;
		if
#if MUT == 5
		:: routed && from < N -> lane!streamed,0
#else
		:: routed && (asked || from < N) -> lane!streamed,0
#endif
		:: else
		fi;
		if
		:: !deadH && routed && from < N -> toHost!streamed,0
		:: else
		fi;
		if :: !deadH -> toHost!ended,0 :: else fi }
	:: atomic { len(toProducer) > lostToProducer && toProducer?[direct] -> toProducer?direct;
		if
#if MUT == 9
		:: !stop && !routed -> routed = true; from = sent
#else
		:: !stop && !routed && !asked -> routed = true; from = sent
#endif
		:: true               /* and goes on through the host */
		fi }
	:: atomic { len(toProducer) > lostToProducer && toProducer?[over] -> toProducer?over;
		if
		:: !stop ->
			stop = true; broke = true;
#if MUT != 2
			say_cut()
#endif
		:: else
		fi }
	:: atomic { faults < FAULTS && !stop -> /* the task fails */
		faults++; stop = true; broke = true;
#if MUT != 1
		say_cut();
#endif
		if :: !deadH -> toHost!failed,0 :: else fi }
	/* Of what is over it may be forgotten that it was whole: that was said then. */
	:: atomic { back?await ->
		asked = true;
		if
		:: routed && !stop    /* to be said when it ends */
		:: routed && whole -> lane!streamed,0
#if MUT == 3
		:: !routed || stop
#else
		:: !routed || stop -> lane!cut,0
#endif
		fi }
	od
	} unless { deadP }
}

/* ---- the host */

proctype Host() {
	bool told;               /* the request is over */
	byte n;
	mtype m;
	{
end:	do
	:: atomic { nempty(toHost) -> toHost?m,n;
		if
		:: told || givenUp
		:: else ->
			if
			:: m == put -> toConsumer!deliver,n;
				if :: n == 1 -> toConsumer!expect,0 :: else fi
			:: m == streamed -> toConsumer!streamed,0
			:: m == ended -> toConsumer!end_,0
			:: m == failed -> told = true; toConsumer!over,0
			fi
		fi; n = 0; m = 0 }
	:: atomic { nempty(fromConsumer) -> fromConsumer?expecting; if :: !told -> toProducer!direct :: else fi }
	:: atomic { deadP && !told && !givenUp -> told = true; toConsumer!over,0 }
	:: atomic { givenUp && !told -> told = true; toProducer!over }
	od
	} unless { deadH }
}

/* ---- the consumer */

inline take_in(n) {
	if
	:: dropped || done
	:: else ->
		early = early | (1 << n);
		do
		:: early & (1 << next) -> early = early & ~(1 << next); next++
		:: else -> break
		od
	fi
}

#define isWhole (known && next == N)

#if MUT == 6
#define short false
#else
#define short (said && next < N)
#endif

#if MUT == 8
#define cutShort false
#elif MUT == 10
#define cutShort (isCut && directs > 0)
#else
#define cutShort (isCut && directs > 0 && !isWhole)
#endif

#define missing (cutShort || (!isWhole && (early != 0 || short || (lost && (directs > 0 || known)))))

#if MUT == 7
#define more (!known && directs > 0 && !isCut)
#else
#define more (!known && !isCut && (directs > 0 || (expects && !lost)))
#endif

proctype Consumer() {
	byte early, directs, n;
	bool expects, known, said, isCut, lost, asked;
	mtype m;
end:	do
	:: atomic { !alone && len(toConsumer) > lostToConsumer -> toConsumer?m,n;
		if
		:: m == deliver -> relayed++; take_in(n)
		:: m == expect -> expects = true; if :: !deadH && !givenUp -> fromConsumer!expecting :: else fi
		:: m == streamed -> known = true
		:: m == end_ -> asked = true
		:: m == over -> if :: !done -> dropped = true; toldOver = true :: else fi
		fi; n = 0; m = 0 }
	:: atomic { len(lane) > lostInLane -> lane?m,n;
		if
		:: m == deliver -> directs = 1; take_in(n)
		:: m == streamed -> known = true; said = true
		:: m == cut -> isCut = true
		fi; n = 0; m = 0 }
	:: atomic { deadP && !lost && len(lane) == lostInLane -> lost = true }
	:: atomic { !alone && asked && !dropped && !done && early == 0 && !(known && next < N) ->
		CHECK(stream_is_whole, next == N);
		done = true }
	:: atomic { (deadH || givenUp) && !alone && !dropped && !done && len(toConsumer) == lostToConsumer ->
		alone = true;
#if MUT != 4
		if :: expects && !lost -> back!await :: else fi
#endif
		}
	:: atomic { alone && !dropped && !done && missing -> dropped = true }
	:: atomic { alone && !dropped && !done && !missing && !more && !(known && next < N) -> done = true }
	od
}

/* ---- what goes wrong */



inline lose(queue, count) {
	do
	:: count < len(queue) -> count++
	:: break
	od
}

proctype Faults() {
	do
	:: atomic { faults < FAULTS && !deadH -> faults++; lose(toProducer, lostToProducer); lose(toConsumer, lostToConsumer); deadH = true }
	:: atomic { faults < FAULTS && !deadH && !givenUp -> faults++; lose(toConsumer, lostToConsumer); givenUp = true }
	:: atomic { faults < FAULTS && !deadP -> faults++; lose(lane, lostInLane); deadP = true }
	:: break
	od
}

proctype Watch() {
end:	timeout -> atomic {
		if
		:: alone ->
			CHECK(task_ends, dropped || done);
			if
			:: done && lostInLane == 0 -> CHECK(stream_is_whole, next == N || past == 0)
			:: else
			fi;
			if
			:: dropped && !toldOver -> CHECK(failure_has_a_cause, broke || deadP || relayed < through)
			:: else
			fi
		:: else
		fi
	}
}

init {
	atomic { run Producer(); run Host(); run Consumer(); run Faults(); run Watch() }
}
