/*
 * A stream begins through the host and goes on by a direct path: no delivery is
 * lost, repeated or out of order, and no process takes a part for the whole.
 *
 * A producer sends DELIVERIES payloads to a consumer. At the second one the host
 * has the consumer expect more from the producer itself, and then tells the
 * producer, which may use the direct path from then on, a lane of shared memory,
 * or not. The producer says the length of the stream in the lane and, before its
 * end, to the host, which passes it on before it asks the consumer to end. FAULTS
 * times one of the three dies, at any step, or producer and consumer break their
 * connection and live on, or the caller aborts the request. Messages that a dead
 * producer has not written to its socket or its lane are lost; others are read.
 *
 * When the host dies each of the two ends its part.
 *
 * small: -DDELIVERIES=4 -DFAULTS=1
 * full:  -DDELIVERIES=5 -DFAULTS=2
 *
 * MUT 1 the producer is told before the consumer expects it   -> frames_are_expected
 * MUT 2 the consumer does not wait for earlier deliveries      -> in_order
 * MUT 3 the consumer ends without waiting for the total        -> stream_is_whole
 * MUT 4 the producer says streamed after its end               -> stream_is_whole
 * MUT 5 the total counts the direct path alone                 -> stream_is_whole
 * MUT 6 the host asks for the end before it says the total     -> stream_is_whole
 * MUT 7 the death of the producer is taken for the end         -> stream_is_whole
 * MUT 8 a producer's death does not fail the request           -> stream_is_whole
 * MUT 9 a consumer's death fails only if relayed ones are open -> stream_is_whole
 * MUT 10 the total is not compared when the producer is dead   -> request_ends
 * MUT 11 a death is ignored when the total is known            -> request_ends
 * MUT 12 a consumer still expects more after a break           -> request_ends
 * MUT 13 a break has no effect                                 -> request_ends
 * MUT 14 a death after the end fails the request again         -> request_ends_once
 * MUT 15 the producer releases when it has sent                -> payload_intact
 * MUT 16 a break releases the payloads at the peer             -> payload_intact
 * MUT 17 a peer's death does not release its payloads          -> room_comes_back
 * MUT 18 all deliveries are finished at the host               -> room_comes_back
 * MUT 19 early deliveries are not finished at a failure        -> room_comes_back
 * MUT 20 deliveries of an ended request are not finished       -> room_comes_back
 * MUT 21 the consumer leaves a dead producer's lane unread     -> failure_has_a_cause
 * MUT 22 the host leaves a dead producer's socket unread       -> failure_has_a_cause
 * MUT 23 a death ignores deliveries that the host relays       -> failure_has_a_cause
 * MUT 24 without the host the consumer waits for more          -> task_ends
 */
#include "model.h"

#ifndef DELIVERIES
#define DELIVERIES 4
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#define N DELIVERIES

mtype = { frames_are_expected, in_order, stream_is_whole, request_ends, request_ends_once,
	payload_intact, room_comes_back, failure_has_a_cause, task_ends };
mtype = { put, deliver, expect, expecting, direct, streamed, end_, ended, failed, over };

/* Sockets, each with space for all messages of a run. */
chan toHost = [N + 2] of { mtype, byte };     /* from the producer */
chan toProducer = [2] of { mtype };
chan toConsumer = [N + 4] of { mtype, byte };
chan fromConsumer = [2] of { mtype };

chan lane = [N + 1] of { mtype, byte };       /* from the producer to the consumer */
chan ready = [N] of { byte };                 /* in the consumer, for its handler */

/* At the death of the producer: the number of its last messages that it had not
 * written to the lane or the socket. */
byte lostToHost, lostInLane;
byte lostToProducer, lostToConsumer; /* the same, at the death of the host */

bool deadP, deadC, deadH;
bool broken;             /* the connection of producer and consumer */
bool complete;           /* the producer died after all its messages */
bool left;               /* the producer lives, and has closed the lane after its messages */
bool aborted;            /* by the caller */

/* A finish and the return of its payload are one step, although the finish
 * travels: a later return is only safer, and no process waits for it. */
bool kept[N];            /* the producer's payload is in place */
byte held;               /* a bit for each relayed, unfinished delivery */
bool past[N];            /* ... and each on the direct path */
bool told;               /* the producer has said that it ends */

bool expects;            /* the consumer takes deliveries on the direct path */
bool dropped;            /* the consumer wants no more deliveries */
bool done;               /* ... or has handled all */
byte handled;
bool completed;
byte ends;               /* of the request */

/* ---- the producer */

inline emit() {
	atomic {
#if MUT != 15
		kept[next] = true;
#endif
		if
		:: !routed -> toHost!put,next
		:: routed ->
			CHECK(frames_are_expected, expects);
			if
			:: !broken && !gone -> past[next] = true; lane!deliver,next
			:: else -> kept[next] = false
			fi
		fi;
		next++
	}
}

inline give_back_direct() {
	for (n : 0 .. N - 1) {
		if :: past[n] -> kept[n] = false :: else fi
	}
	n = 0
}

#if MUT == 5
#define TOTAL (N - from)
#else
#define TOTAL N
#endif

inline say_streamed() {
	if
	:: routed && from < N ->
		if :: !broken -> lane!streamed,TOTAL :: else fi;
		toHost!streamed,TOTAL
	:: else
	fi
}

proctype Producer() {
	byte next, n, from;      /* from: the first on the direct path */
	bool routed, gone, stop;
	mtype m;
	{
end:	do
	:: next < N && !stop -> emit()
	:: next == N && !stop ->
#if MUT == 4
		toHost!ended,0; told = true; say_streamed();
#else
		say_streamed(); toHost!ended,0; told = true;
#endif
		stop = true
	:: atomic { len(toProducer) > lostToProducer && toProducer?[direct] -> toProducer?direct;
		if
		:: !routed && next < N && !stop -> routed = true; from = next
		:: true               /* and goes on through the host */
		fi }
	:: atomic { len(toProducer) > lostToProducer && toProducer?[over] -> toProducer?over; stop = true }
#if MUT != 17
	:: atomic { deadC && !gone -> gone = true; give_back_direct() }
#endif
#if MUT == 16
	:: atomic { broken && !gone -> gone = true; give_back_direct() }
#endif
	:: atomic { deadH && !left -> stop = true; left = true } /* and reuses no memory */
	od
	} unless { deadP }
}

/* ---- the host */

inline end_request(failure) {
	if
#if MUT == 14
	:: true ->
#else
	:: ends == 0 ->
#endif
		ends++;
		completed = !failure;
		if
		:: failure && ends == 1 -> toProducer!over; toConsumer!over,0
		:: else
		fi
	:: else
	fi
}

proctype Host() {
	bool introduced, closed, asked, endedP, goneP, goneC;
	byte n;
	mtype m;
	{
end:	do
	:: atomic { !goneP && len(toHost) > lostToHost -> toHost?m,n;
		if
		:: m == put && ends == 0 && !goneC ->
			toConsumer!deliver,n; held = held | (1 << n);
			if
			:: n > 0 && !introduced ->
				introduced = true; toConsumer!expect,0;
#if MUT == 1
				toProducer!direct
#endif
			:: else
			fi
		:: m == put && !(ends == 0 && !goneC) -> kept[n] = false
		:: m == streamed && ends == 0 && !closed ->
			closed = true;
#if MUT == 6
			if :: held == 0 -> asked = true; toConsumer!end_,0 :: else fi;
#endif
			toConsumer!streamed,n
		:: m == streamed && !(ends == 0 && !closed)
		:: m == ended -> endedP = true; closed = true
		fi; n = 0; m = 0 }
	:: atomic { !goneC && nempty(fromConsumer) -> fromConsumer?m;
		if
#if MUT == 1
		:: m == expecting
#else
		:: m == expecting -> toProducer!direct
#endif
		:: m == ended -> CHECK(stream_is_whole, handled == N); end_request(false)
		:: m == failed -> end_request(true)
		fi; m = 0 }
	:: atomic { ends == 0 && closed && held == 0 && !asked && !goneC -> asked = true; toConsumer!end_,0 }
#if MUT == 22
	:: atomic { deadP && !goneP ->
#else
	:: atomic { deadP && !goneP && len(toHost) == lostToHost ->
#endif
		goneP = true;
#if MUT == 8
		closed = true              /* and another process ends for it */
#else
		if :: !endedP -> end_request(true) :: else fi
#endif
		}
	:: atomic { aborted && ends == 0 -> end_request(true) }
	:: atomic { deadC && !goneC ->
		goneC = true;
#if MUT == 9
		if :: held > 0 -> end_request(true) :: else fi;
#else
		end_request(true);
#endif
		for (n : 0 .. N - 1) {
			if :: held & (1 << n) -> kept[n] = false :: else fi
		}
		held = 0; n = 0 }
#if MUT == 9
	:: atomic { ends == 0 && goneC && closed -> CHECK(stream_is_whole, handled == N); end_request(false) }
#endif
	od
	} unless { deadH }
}

/* ---- the consumer */

inline give_back(n) {
	if
#if MUT == 18
	:: past[n]
#else
	:: past[n] -> if :: !broken -> kept[n] = false :: else fi
#endif
	:: !past[n] && !deadH -> held = held & ~(1 << n); kept[n] = false
	:: else
	fi
}

inline feed(n) {
	CHECK(in_order, n == next);
	ready!n;
	next = n + 1
}

inline take_in(n) {
	if
	:: dropped || done ->
#if MUT == 20
		skip
#else
		give_back(n)
#endif
	:: else ->
#if MUT == 2
		feed(n)
#else
		early = early | (1 << n);
		do
		:: early & (1 << next) -> early = early & ~(1 << next); feed(next)
		:: else -> break
		od
#endif
	fi
}

inline drop() {
	dropped = true;
	i = 0;
	do
	:: i < N && (early & (1 << i)) ->
#if MUT != 19
		give_back(i);
#endif
		i++
	:: i < N && !(early & (1 << i)) -> i++
	:: i == N -> break
	od;
	early = 0; i = 0; next = 0; known = false; total = 0; first = 0; directs = 0
}

inline fail() {
	if
	:: !dropped && !done -> fromConsumer!failed; drop()
	:: else
	fi
}

/* The producer is dead, and deliveries of the direct path are missing. Relayed
 * ones may still be on their way. */
#if MUT == 23
#define lacking (next < total)
#else
#define lacking (directs == 0 || first + directs < total)
#endif

inline lack() {
	if
	:: known && lacking -> fail()
	:: else
	fi
}

inline learn(n) {
	if
	:: !dropped && !done ->
		known = true; total = n;
#if MUT != 10
		if :: lost -> lack() :: else fi
#endif
	:: else
	fi
}

#if MUT == 3
#define allHere (asked)
#else
#define allHere (asked && !(known && next < total))
#endif

proctype Consumer() {
	byte next, total, early, first, directs, n, i;
	bool known, lost, laneOver, asked;
	mtype m;
	{
end:	do
	:: atomic { len(toConsumer) > lostToConsumer -> toConsumer?m,n;
		if
		:: m == deliver && expects -> take_in(n)
		:: m == deliver && !expects ->
			if :: dropped -> give_back(n) :: else -> feed(n) fi
		:: m == expect ->
#if MUT == 12
			expects = true; fromConsumer!expecting
#else
			expects = true;
			if :: !laneOver -> fromConsumer!expecting :: else fi
#endif
		:: m == streamed -> learn(n)
		:: m == end_ -> asked = true
		:: m == over -> if :: !dropped && !done -> drop() :: else fi
		fi; n = 0; m = 0 }
	:: atomic { !laneOver && len(lane) > lostInLane -> lane?m,n;
		if
		:: m == deliver ->
			if
			:: directs == 0 && !dropped -> first = n
			:: else
			fi;
			if :: !dropped -> directs++ :: else fi;
			take_in(n)
		:: m == streamed -> learn(n)
		fi; n = 0; m = 0 }
	:: atomic { broken && !laneOver ->
		laneOver = true;
#if MUT != 13
		if :: expects -> fail() :: else fi
#endif
		}
	:: atomic { left && !laneOver && empty(lane) ->
		laneOver = true;
		if :: expects -> fail() :: else fi }
#if MUT == 21
	:: atomic { deadP && !laneOver ->
#else
	:: atomic { deadP && !laneOver && len(lane) == lostInLane ->
#endif
		laneOver = true;
		if
		:: expects ->
			lost = true;
#if MUT == 7
			known = true; total = next
#elif MUT != 11
			lack()
#endif
		:: else
		fi }
	:: atomic { allHere && handled == next && !dropped && !done ->
		done = true;
		CHECK(stream_is_whole, handled == N);
		fromConsumer!ended }
#if MUT != 24
	:: atomic { deadH && !dropped && !done -> drop() }
#endif
	od
	} unless { deadC }
}

proctype Handler() {
	byte n;
	{
end:	do
	:: atomic { ready?n -> CHECK(payload_intact, dropped || kept[n]) }
		atomic { CHECK(payload_intact, dropped || kept[n]); give_back(n);
			if :: !dropped -> handled++ :: else -> handled = 0 fi;
			n = 0 }
	od
	} unless { deadC }
}

/* ---- faults */

proctype Faults() {
	byte faults;
	do
	:: atomic { faults < FAULTS && !deadP ->
		faults++;
		do
		:: lostToHost < len(toHost) -> lostToHost++
		:: break
		od;
		do
		:: lostInLane < len(lane) -> lostInLane++
		:: break
		od;
		complete = told && lostToHost == 0 && lostInLane == 0;
		deadP = true }
	:: atomic { faults < FAULTS && !deadC -> faults++; deadC = true }
	:: atomic { faults < FAULTS && !deadH ->
		faults++;
		do
		:: lostToProducer < len(toProducer) -> lostToProducer++
		:: break
		od;
		do
		:: lostToConsumer < len(toConsumer) -> lostToConsumer++
		:: break
		od;
		deadH = true }
	:: atomic { faults < FAULTS && !broken -> faults++; broken = true }
	:: atomic { faults < FAULTS && !aborted -> faults++; aborted = true }
	:: break
	od
}

/* A living peer may read on after a break: its payloads stay until it is dead.
 * Without the host nodes reuse no memory. */
proctype Watch() {
	byte n;
end:	timeout -> atomic {
		if
		:: !deadH ->
			CHECK(request_ends, ends > 0);
			CHECK(request_ends_once, ends == 1);
			CHECK(failure_has_a_cause, completed || deadC || broken || aborted || (deadP && !complete));
			if
			:: !deadP && (!broken || deadC) ->
				for (n : 0 .. N - 1) { CHECK(room_comes_back, !kept[n]) }
			:: else
			fi
		:: else -> CHECK(task_ends, deadC || dropped || done)
		fi
	}
}

init {
	atomic { run Producer(); run Host(); run Consumer(); run Handler(); run Faults(); run Watch() }
}
