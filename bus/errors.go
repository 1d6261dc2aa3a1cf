package bus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
)

var (
	// ErrConfig reports a pipeline or options that cannot work.
	ErrConfig = errors.New("bus: invalid configuration")
	// ErrWindows is the ErrConfig of byte windows that do not fit the store.
	ErrWindows = fmt.Errorf("%w: the byte windows do not fit the store", ErrConfig)
	// ErrClosed reports use of a bus that is closing or closed.
	ErrClosed = errors.New("bus: closed")
	// ErrOverloaded reports that TrySubmit found no place for the request.
	ErrOverloaded = errors.New("bus: overloaded")
	// ErrAborted is how an aborted request ended.
	ErrAborted = errors.New("bus: request aborted")
	// ErrDeadline is how a request ended that ran past its deadline, be that an option's or its context's.
	// It is a context.DeadlineExceeded.
	ErrDeadline error = deadlineError{}
	// ErrEnded reports an operation on a request that is over.
	ErrEnded = errors.New("bus: request is over")
	// ErrWindowFull reports a full window on an edge whose policy is Fail, or a
	// full queue behind a stage that never waits (Batch, Props).
	ErrWindowFull = errors.New("bus: window full")
	// ErrTooLarge reports a payload larger than any may be: see Options.Store.
	ErrTooLarge = errors.New("bus: payload too large")
	// ErrSequence reports a delivery that is missing, repeated or out of place, or missing in
	// a branch of a join that ended before the others.
	ErrSequence = errors.New("bus: sequence broken")
	// ErrJoinFull reports that inputs waiting in joins need more than the room
	// set aside for them.
	ErrJoinFull = errors.New("bus: no room left for inputs waiting in joins")
	// ErrReplayFull reports a stage that keeps more input for a replay than
	// the edge's byte window allows.
	ErrReplayFull = errors.New("bus: input kept for replay exceeds the edge's byte window")
	// ErrNoEdge reports an emission to a stage that is not a successor.
	ErrNoEdge = errors.New("bus: no such edge")
	// ErrPayload reports a payload that is not what the reader asked for.
	ErrPayload = errors.New("bus: payload does not fit")
	// ErrProcessDied reports a process that died with work that could not be
	// given to another.
	ErrProcessDied = errors.New("bus: the stage's process died")
	// ErrHandleTimeout reports a handler in another process that has not returned within Remote.HandleTimeout.
	ErrHandleTimeout = errors.New("bus: a handler has not returned in time")
	// ErrHostGone is how a node's requests end when the host of the bus is gone.
	ErrHostGone = errors.New("bus: no connection to the host")
	// ErrNotClean reports what Close has found broken in the store, or not given back.
	ErrNotClean = errors.New("bus: the store is not clean")
	// ErrPanic reports a handler that panicked.
	ErrPanic = errors.New("bus: stage panicked")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "bus: deadline exceeded" }

func (deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// StageError says where a request failed. Fields that do not apply are empty.
type StageError struct {
	Stage string
	Edge  string // "from->to"
	Key   string
	Seq   uint64
	Err   error
}

// Error implements error.
func (e *StageError) Error() string {
	var b strings.Builder
	b.WriteString("bus: ")
	if e.Stage != "" {
		fmt.Fprintf(&b, "stage %q: ", e.Stage)
	}
	if e.Edge != "" {
		fmt.Fprintf(&b, "edge %s, sequence %d", e.Edge, e.Seq)
		if e.Key != "" {
			fmt.Fprintf(&b, ", key %q", e.Key)
		}
		b.WriteString(": ")
	}
	b.WriteString(strings.TrimPrefix(e.Err.Error(), "bus: "))
	return b.String()
}

// Unwrap gives the cause.
func (e *StageError) Unwrap() error { return e.Err }

// ended is why a request ended, where that is an error which says something else of a call: io.EOF
// says of results that all have come, and ErrCanceled that a call would have had to wait.
type ended struct{ error }

// endedBy is the error of a request's end.
func endedBy(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, ErrCanceled) {
		return ended{err}
	}
	return err
}

func (e ended) Is(target error) bool {
	return target != io.EOF && target != ErrCanceled && errors.Is(e.error, target)
}

func (e ended) As(target any) bool { return errors.As(e.error, target) }

// locationIn is where an error says that it happened, if that is at the stage: one that a handler
// lets out may be that of another request.
func locationIn(err error, stage string) (at *StageError, ok bool) {
	at, ok = errors.AsType[*StageError](err)
	return at, ok && at.Stage == stage
}

// TextWithoutLocation is the text of an error that has a place in it, without that.
func (e *StageError) TextWithoutLocation(err error) string {
	return strings.Replace(err.Error(), e.Error(), e.Err.Error(), 1)
}
