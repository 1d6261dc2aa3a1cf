/*
 * A request on the short path: the caller numbers it, messages share packets, and a
 * stage says unasked that its task has ended.
 *
 * A caller submits REQUESTS requests, one after the other, the first with INPUTS
 * inputs and each other with one; the last input has the flag. It may abort ABORTS of
 * them. The host refuses a request, or gives its inputs to REPLICAS replicas of a stage
 * without state, with STICKY all of a request to one. A replica puts one output
 * for each input and then finishes it. FAULTS times a replica's process dies, at any
 * step, or says falsely that a task has ended. Unsent packets of a dead process are
 * lost; sent ones are read. The host repeats unfinished inputs, and drops outputs that
 * were delivered before. A process that breaks the protocol counts as dead.
 *
 * small: -DREQUESTS=1 -DINPUTS=2 -DABORTS=0
 * small: -DREQUESTS=2 -DINPUTS=1 -DREPLICAS=1
 * full:  -DREQUESTS=2 -DINPUTS=2
 * full:  -DREQUESTS=1 -DINPUTS=2 -DFAULTS=2
 * full:  -DREQUESTS=2 -DINPUTS=2 -DSTICKY=1
 *
 * MUT 1 over leaves before the last result                      -> over_is_last
 * MUT 2 a stage says finish before its put                      -> finished_is_out
 * MUT 3 the host accepts an end after a part of the inputs      -> end_is_whole
 * MUT 4 the host accepts an end with an unfinished input        -> end_is_whole
 * MUT 5 an ended task gets a repeat, and is not opened          -> finished_is_out
 * MUT 6 a task gets a repeat after its last input               -> honest_is_believed
 * MUT 7 the number of a request is used again                   -> own_results
 * MUT 8 an input of a refused request is handled                -> refused_has_no_result
 * MUT 9 a repeat's output is not dropped                        -> each_result_once
 * MUT 10 an abort after the end is answered with over as well   -> over_once
 * MUT 11 an input of a refused request is not returned          -> all_comes_back
 * MUT 12 results after an abort are not finished                -> all_comes_back
 * MUT 13 a task dies that was to end, and no other is asked     -> nobody_waits
 */
#include "model.h"

#ifndef REQUESTS
#define REQUESTS 2
#endif
#ifndef ABORTS
#define ABORTS 1
#endif
/* These need larger sizes than small. */
#if MUT == 7
#undef REQUESTS
#define REQUESTS 2
#endif
#if MUT == 7 || MUT == 10 || MUT == 12
#undef ABORTS
#define ABORTS 1
#endif
#ifndef INPUTS
#define INPUTS 2
#endif
#ifndef REPLICAS
#define REPLICAS 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef STICKY
#define STICKY 0
#endif
#define WINDOW 1                /* results that the caller has not finished */
#define TASKS  (REQUESTS * (REPLICAS + FAULTS + 1))     /* no more are opened: see post */

mtype = { over_is_last, over_once, finished_is_out, end_is_whole, honest_is_believed, own_results,
	refused_has_no_result, each_result_once, all_comes_back, nobody_waits };
mtype = { submit, input, abort, result, over, refused, open, deliver, end_, put, finish, ended };

#define faulty(r)   ((r) == 0 || FAULTS > 1)    /* for identical replicas that is enough */
#define inputsOf(q) ((q) == 0 -> INPUTS : 1)
#define lastOf(q)   (inputsOf(q) - 1)
#define W(q, i)     ((q) * INPUTS + (i))
#define BIT(n)      (1 << (n))

#if MUT == 7
#define NUMBER(q)   1
#else
#define NUMBER(q)   ((q) + 1)
#endif

/* Sockets, each with space for all messages of a run. A message to the caller
 * has the request after the number: only the CHECKs read it. */
chan toHost = [REQUESTS * 2 + INPUTS + 1] of { mtype, byte, byte };        /* number, input */
chan toCaller = [REQUESTS * 3 + INPUTS] of { mtype, byte, byte, byte };    /* number, request, input */
chan toStage[REPLICAS] = [8] of { mtype, byte, byte };                      /* task, input */
chan unsent[REPLICAS] = [8] of { mtype, byte, byte };                       /* in the process */
chan fromStage[REPLICAS] = [10] of { mtype, byte, byte };

bool dead[REPLICAS];            /* the process is killed, or the host has hung up */
bool gone[REPLICAS];            /* and it is gone: its pidfd is readable */
byte known[REPLICAS];           /* tasks that the process has open */
bool rash[REPLICAS];            /* it has said a false end */
byte faults;

/* The host's state: of requests, of inputs, of tasks. */
#define RUNS  1
#define OVER  2
byte submits;
byte bySource[REQUESTS + 1];    /* the request of a number, plus one */
byte state[REQUESTS];
#if MUT == 1
bool saidOver[REQUESTS];
#endif
bool ending[REQUESTS];          /* the last input has come */
bool asked[REQUESTS];           /* ... and all are finished: the host waits for answers, */
byte left[REQUESTS];            /* of this number */
bool early[REQUESTS];           /* one answered before that */
byte home[REQUESTS];            /* where it stays, with STICKY: the replica plus one */

#define WAITS    1              /* for a replica */
#define FINISHED 2
#define GIVEN(t) (3 + (t))      /* to a replica, for this task */
byte work[REQUESTS * INPUTS];
bool out[REQUESTS * INPUTS];    /* its output was delivered */

byte tasks;                     /* number of opened tasks */
byte whose[TASKS];              /* the request */
byte at[TASKS];                 /* the replica */
bool opened[TASKS];             /* the host waits for the task's end */
bool last[TASKS];               /* it has had the last input */
bool due[TASKS];                /* its end is waited for */

bool attached[REPLICAS];
bool busy[REPLICAS];            /* a put waits for credit, and later messages for it */
byte busyTask[REPLICAS], busyInput[REPLICAS];

bool lent[REQUESTS * INPUTS];   /* the caller's payload: it has been sent and has not come back */
byte credit[REQUESTS];          /* of the results' window */
bool ends[REQUESTS];            /* over has come to the caller */
bool refusal[REQUESTS];         /* ... or is coming, and says refused */
bool closed[REQUESTS];          /* for the caller it has ended */

/* ---- the caller */

proctype Caller() {
	byte r, num, q, i, sent, got;
	bool begun;
	byte aborts;
	mtype m;
	do :: aborts < ABORTS -> aborts++ :: break od;          /* the other requests end by themselves */
end:	do
	:: atomic { !begun && r < REQUESTS ->         /* one packet */
		toHost!submit,NUMBER(r),0;
		lent[W(r, 0)] = true;
		toHost!input,NUMBER(r),0;
		sent = 1; begun = true }
	:: atomic { begun && sent < inputsOf(r) ->
		lent[W(r, sent)] = true;
		toHost!input,NUMBER(r),sent;
		sent++ }
	:: atomic { begun && aborts < ABORTS ->
		aborts++;
		toHost!abort,NUMBER(r),0;
		closed[r] = true;
		begun = false; sent = 0; got = 0; r++ }
	:: atomic { toCaller?m,num,q,i ->
		if
		:: m == result ->
			CHECK(refused_has_no_result, !refusal[q]);
			CHECK(over_is_last, !ends[q]);
			if
			:: begun && num == NUMBER(r) ->
				CHECK(own_results, q == r);
				CHECK(each_result_once, !(got & BIT(i)));
				CHECK(each_result_once, !STICKY || got == BIT(i) - 1);
				got = got | BIT(i);
				credit[q]++
			:: else ->
#if MUT != 12
				credit[q]++
#else
				skip
#endif
			fi
		:: m == over || m == refused ->
			CHECK(over_once, !ends[q]);
			ends[q] = true;
			if
			:: begun && num == NUMBER(r) ->
				CHECK(own_results, q == r);
				CHECK(over_is_last, m == refused || got == BIT(inputsOf(r)) - 1);
				CHECK(refused_has_no_result, m == over || got == 0);
				closed[r] = true;
				begun = false; sent = 0; got = 0; r++
			:: else
			fi
		fi; m = 0; num = 0; q = 0; i = 0 }
	od
}

/* ---- a replica */

/* A message waits for others to share its packet: see Sender. */
inline say_ended(task) {
	unsent[me]!ended,task,0;
	known[me] = known[me] & ~BIT(task)
}

proctype Stage(byte me) {
	byte lasts, t, i;       /* lasts: tasks that have had their last input */
	mtype m;
endAgain: {
end:	do
	:: atomic { toStage[me]?m,t,i ->
		if
		:: m == open -> known[me] = known[me] | BIT(t)
		:: m == deliver && (known[me] & BIT(t)) ->
			if :: i == lastOf(whose[t]) -> lasts = lasts | BIT(t) :: else fi;
#if MUT == 2
			unsent[me]!finish,t,i
#else
			unsent[me]!put,t,i
#endif
		:: m == deliver && !(known[me] & BIT(t)) -> unsent[me]!finish,t,i; m = 0
		:: m == end_ ->
			if :: known[me] & BIT(t) -> say_ended(t) :: else fi
		:: m == over -> known[me] = known[me] & ~BIT(t)
		fi;
		if :: m != deliver -> m = 0; t = 0; i = 0 :: else fi }
		if
		:: m == deliver ->
			atomic {
#if MUT == 2
				unsent[me]!put,t,i;
#else
				unsent[me]!finish,t,i;
#endif
				if
				:: !(known[me] & lasts & BIT(t)) -> m = 0; t = 0; i = 0
				:: else
				fi }
			if :: m == deliver -> atomic { say_ended(t); m = 0; t = 0; i = 0 } :: else fi
		:: else
		fi
	:: atomic { faulty(me) && faults < FAULTS && known[me] ->
		faults++; rash[me] = true;
		t = 0;
		do
		:: t < TASKS && (known[me] & BIT(t)) -> say_ended(t); break
		:: t < TASKS -> t++
		:: t == TASKS -> break
		od; t = 0 }
	od
	} unless { dead[me] };
	d_step { lasts = 0; m = 0; t = 0; i = 0; known[me] = 0; gone[me] = true }
	!gone[me];
	goto endAgain
}

proctype Sender(byte me) {
	byte t, i;
	mtype m;
end:	do
	:: atomic { !dead[me] && nempty(unsent[me]) ->  /* all of it in one packet */
		do
		:: nempty(unsent[me]) -> unsent[me]?m,t,i; fromStage[me]!m,t,i
		:: empty(unsent[me]) -> break
		od; m = 0; t = 0; i = 0 }
	od
}

/* ---- the host: a message and its effects are one step, and are sent at once */

inline choose(side) {
	if
	:: home[side] -> p = home[side] - 1
	:: !home[side] && attached[0] -> p = 0
#if REPLICAS > 1
	:: !home[side] && attached[1] -> p = 1
#endif
	:: else -> p = REPLICAS
	fi
}

/* A repeat may come after the last input: then the task may have ended already
 * before the host has read that. */
#if MUT == 5
bool answered[TASKS];
#define takesMore(t) ((opened[t] && !last[t]) || answered[t])
#elif MUT == 6
#define takesMore(t) opened[t]
#else
#define takesMore(t) (opened[t] && !last[t])
#endif

/* The task of a request at replica p. */
inline post(side) {
	t = 0;
	do
	:: t < tasks && whose[t] == side && at[t] == p && takesMore(t) -> break
	:: t < tasks && !(whose[t] == side && at[t] == p && takesMore(t)) -> t++
	:: t == tasks ->
		assert(tasks < TASKS);
		whose[t] = side; at[t] = p; opened[t] = true; tasks++;
		toStage[p]!open,t,0;
		break
	od
}

inline route(side, which) {
	choose(side);
	if
	:: p == REPLICAS -> work[W(side, which)] = WAITS
	:: else ->
		post(side);
#if STICKY
		home[side] = p + 1;
#endif
		work[W(side, which)] = GIVEN(t);
		last[t] = last[t] || which == lastOf(side);
		toStage[p]!deliver,t,which
	fi
}

inline say_over(side, how) {
#if MUT == 1
	if :: !saidOver[side] -> saidOver[side] = true; toCaller!how,NUMBER(side),side,0 :: else fi
#else
	toCaller!how,NUMBER(side),side,0
#endif
}

inline end_request(side) {
	state[side] = OVER;
	say_over(side, over);
	if :: bySource[NUMBER(side)] == side + 1 -> bySource[NUMBER(side)] = 0 :: else fi;
	for (t : 0 .. TASKS - 1) {
		if :: opened[t] && whose[t] == side -> opened[t] = false; toStage[at[t]]!over,t,0 :: else fi
	}
	for (w : 0 .. lastOf(side)) {
		if :: work[W(side, w)] == WAITS -> finish_work(side, w) :: else fi
	}
}

inline finish_work(side, which) {
	work[W(side, which)] = FINISHED;
	lent[W(side, which)] = false
}

/* Asks the replicas to end a request whose inputs are finished. */
inline progress(side) {
	all = state[side] == RUNS && ending[side] && !asked[side];
	for (w : 0 .. lastOf(side)) { all = all && work[W(side, w)] == FINISHED };
	if
	:: all ->
		left[side] = 0;
		for (t : 0 .. TASKS - 1) {
			if :: opened[t] && whose[t] == side -> left[side]++ :: else fi
		}
		if
		:: left[side] == 0 && early[side] -> end_request(side)
		:: left[side] == 0 && !early[side] ->
			choose(side);
			if
			:: p == REPLICAS        /* the next one that attaches */
			:: else -> post(side); left[side] = 1
			fi
		:: else
		fi;
		if
		:: left[side] > 0 ->
			asked[side] = true;
			for (t : 0 .. TASKS - 1) {
				if
				:: opened[t] && whose[t] == side ->
					due[t] = true;
					if :: !last[t] -> toStage[at[t]]!end_,t,0 :: else fi
				:: else
				fi
			}
		:: else
		fi
	:: else
	fi
}

/* Gives waiting inputs to a replica, and ends finished requests. */
inline go_on() {
	for (q : 0 .. REQUESTS - 1) {
		for (i : 0 .. lastOf(q)) {
			if :: work[W(q, i)] == WAITS -> route(q, i) :: else fi
		}
		progress(q)
	}
}

inline emit(r, task, which) {
	q = whose[task];
	busy[r] = false;
	if
	:: state[q] != RUNS || !opened[task]
#if MUT != 9
	:: state[q] == RUNS && opened[task] && out[W(q, which)]
	:: state[q] == RUNS && opened[task] && !out[W(q, which)] && credit[q] == 0 ->
		busy[r] = true; busyTask[r] = task; busyInput[r] = which
	:: state[q] == RUNS && opened[task] && !out[W(q, which)] && credit[q] > 0 ->
#else
	:: state[q] == RUNS && opened[task] && credit[q] == 0 ->
		busy[r] = true; busyTask[r] = task; busyInput[r] = which
	:: state[q] == RUNS && opened[task] && credit[q] > 0 ->
#endif
		credit[q]--;
		out[W(q, which)] = true;
#if MUT == 1
		if :: out[W(q, 0)] && out[W(q, lastOf(q))] -> say_over(q, over) :: else fi;
#endif
		toCaller!result,NUMBER(q),q,which
	fi;
	if :: !busy[r] -> busyTask[r] = 0; busyInput[r] = 0 :: else fi
}

inline take_finish(task, which) {
	q = whose[task];
	if
	:: work[W(q, which)] == GIVEN(task) ->
		CHECK(finished_is_out, state[q] != RUNS || out[W(q, which)]);
		finish_work(q, which);
		progress(q)
	:: else
	fi
}

inline take_ended(r, task) {
	q = whose[task];
	all = true;
	for (w : 0 .. lastOf(q)) { all = all && work[W(q, w)] != GIVEN(task) };
	if
	:: !opened[task]
	:: opened[task] && due[task] ->
		opened[task] = false;
		left[q]--;
		if :: left[q] == 0 -> end_request(q) :: else fi
	:: opened[task] && !due[task] ->
		if
#if MUT == 3
		:: all ->
#elif MUT == 4
		:: last[task] ->
#else
		:: last[task] && all ->
#endif
			CHECK(end_is_whole, last[task] && all);
			opened[task] = false;
#if MUT == 5
			answered[task] = true;
#endif
			early[q] = true
		:: else ->              /* it breaks the protocol */
			CHECK(honest_is_believed, rash[r]);
			drain(fromStage[r]);
			dead[r] = true
		fi
	fi
}

inline drain(c) {
	do
	:: nempty(c) -> c?_,_,_
	:: empty(c) -> break
	od
}

/* The pidfd is readable, and all messages of the process are read. */
inline detach(r) {
	attached[r] = false; busy[r] = false; busyTask[r] = 0; busyInput[r] = 0;
	drain(toStage[r]); drain(unsent[r]); drain(fromStage[r]);
	for (t : 0 .. TASKS - 1) {
		if
		:: t < tasks && at[t] == r ->
			q = whose[t];
			if :: home[q] == r + 1 -> home[q] = 0 :: else fi;
			if
			:: opened[t] ->
				opened[t] = false;
				if
				:: due[t] ->
					left[q]--;
#if MUT != 13
					if :: left[q] == 0 -> asked[q] = false :: else fi
#endif
				:: else
				fi
			:: else
			fi;
			for (w : 0 .. lastOf(q)) {
				if
				:: work[W(q, w)] == GIVEN(t) && state[q] == RUNS -> work[W(q, w)] = WAITS
				:: work[W(q, w)] == GIVEN(t) && state[q] != RUNS -> finish_work(q, w)
				:: else
				fi
			}
		:: else
		fi
	}
}

inline attach(r) {
	dead[r] = false; rash[r] = false; attached[r] = true;
	gone[r] = false
}

inline reset() {
	m = 0; n = 0; q = 0; i = 0; t = 0; p = 0; w = 0; task = 0; which = 0; all = false
}

/* The host and a replica. */
proctype Serving(byte r) {
	byte n, q, i, t, p, w, task, which;
	bool all;
	mtype m;
end:	do
	:: atomic { attached[r] && !busy[r] && nempty(fromStage[r]) ->
		fromStage[r]?m,task,which;
		if
		:: m == put -> emit(r, task, which)
		:: m == finish -> take_finish(task, which)
		:: m == ended -> take_ended(r, task)
		fi; reset() }
	:: atomic { busy[r] && (credit[whose[busyTask[r]]] > 0 || state[whose[busyTask[r]]] != RUNS) ->
		task = busyTask[r]; which = busyInput[r];
		emit(r, task, which); reset() }
	:: atomic { attached[r] && gone[r] && (empty(fromStage[r]) || busy[r]) -> detach(r); go_on(); reset() }
	:: atomic { !attached[r] && gone[r] -> attach(r); go_on(); reset() }
	od
}

/* The host and the caller. */
proctype Taking() {
	byte n, q, i, t, p, w, task, which;
	bool all;
	mtype m;
end:	do
	:: atomic { toHost?m,n,which ->
		if
		:: m == submit ->
			q = submits; submits++;
			credit[q] = WINDOW;
			if
			:: state[q] = RUNS; bySource[n] = q + 1
			:: state[q] = OVER; refusal[q] = true;
				toCaller!refused,n,q,0;
#if MUT == 8
				state[q] = RUNS; bySource[n] = q + 1
#endif
			fi
		:: m == input && bySource[n] ->
			q = bySource[n] - 1;
			ending[q] = ending[q] || which == lastOf(q);
			route(q, which)
		:: m == input && !bySource[n] ->
#if MUT == 11
			skip
#else
			lent[W(submits - 1, which)] = false    /* no message comes later for an older one */
#endif
		:: m == abort && bySource[n] -> q = bySource[n] - 1; end_request(q)
		:: m == abort && !bySource[n] ->
#if MUT == 10
			say_over(submits - 1, over)
#else
			skip
#endif
		fi; reset() }
	od
}

/* ---- faults */

proctype Faults() {
end:	do
	:: atomic { faults < FAULTS && !dead[0] -> faults++; dead[0] = true }
#if REPLICAS > 1 && FAULTS > 1
	:: atomic { faults < FAULTS && !dead[1] -> faults++; dead[1] = true }
#endif
	od
}

proctype Watch() {
	byte q, i;
end:	timeout -> atomic {
		for (q : 0 .. REQUESTS - 1) {
			CHECK(nobody_waits, closed[q]);
			CHECK(nobody_waits, ends[q]);
			CHECK(all_comes_back, credit[q] == WINDOW);
			for (i : 0 .. lastOf(q)) {
				CHECK(all_comes_back, !lent[W(q, i)]);
				CHECK(all_comes_back, work[W(q, i)] == 0 || work[W(q, i)] == FINISHED)
			}
		}
		for (i : 0 .. TASKS - 1) { CHECK(all_comes_back, !opened[i]) }
		for (i : 0 .. REPLICAS - 1) { CHECK(all_comes_back, known[i] == 0) }
	}
}

init {
	byte r;
	atomic {
		do :: faults < FAULTS -> faults++ :: break od;          /* this number of faults does not happen */
		run Caller(); run Taking(); run Faults(); run Watch();
		for (r : 0 .. REPLICAS - 1) { attached[r] = true; run Stage(r); run Sender(r); run Serving(r) }
	}
}
