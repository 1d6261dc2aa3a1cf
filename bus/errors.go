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
	// ErrOverloaded reports that TrySubmit found no free permit or slot for the request.
	ErrOverloaded = errors.New("bus: overloaded")
	// ErrAborted is the error of an aborted request.
	ErrAborted = errors.New("bus: request aborted")
	// ErrDeadline is the error of a request that ran past its deadline, from an option or its context.
	// It is a context.DeadlineExceeded.
	ErrDeadline error = deadlineError{}
	// ErrEnded reports an operation on a request that is over.
	ErrEnded = errors.New("bus: request is over")
	// ErrWindowFull reports a full window on an edge whose policy is Fail, or a
	// full queue behind a stage that never waits (Batch, Props).
	ErrWindowFull = errors.New("bus: window full")
	// ErrTooLarge reports a payload above the largest size: see Options.Store.
	ErrTooLarge = errors.New("bus: payload too large")
	// ErrSequence reports a delivery that is missing, repeated or out of order, or missing in
	// a branch of a join that ended before the others.
	ErrSequence = errors.New("bus: sequence broken")
	// ErrJoinFull reports that inputs waiting in joins exceed Options.JoinBytes.
	ErrJoinFull = errors.New("bus: no room left for inputs waiting in joins")
	// ErrReplayFull reports that the input kept for a replay exceeds the edge's
	// byte window.
	ErrReplayFull = errors.New("bus: input kept for replay exceeds the edge's byte window")
	// ErrNoEdge reports an emission to a stage that is not a successor.
	ErrNoEdge = errors.New("bus: no such edge")
	// ErrPayload reports a payload or value of another type or encoding than the call expects.
	ErrPayload = errors.New("bus: payload does not fit")
	// ErrProcessDied reports a process that died with work that no other replica
	// may repeat.
	ErrProcessDied = errors.New("bus: the stage's process died")
	// ErrHandleTimeout reports a handler in another process that has not returned within Remote.HandleTimeout.
	ErrHandleTimeout = errors.New("bus: a handler has not returned in time")
	// ErrHostGone is the error of a node's requests when the host of the bus is gone.
	ErrHostGone = errors.New("bus: no connection to the host")
	// ErrNotClean reports broken invariants of the store, or unreleased payloads, at Close.
	ErrNotClean = errors.New("bus: the store is not clean")
	// ErrPanic reports a handler that panicked.
	ErrPanic = errors.New("bus: stage panicked")
)

type deadlineError struct{}

func (deadlineError) Error() string { return "bus: deadline exceeded" }

func (deadlineError) Is(target error) bool { return target == context.DeadlineExceeded }

// StageError is the location and cause of a failure. Fields that do not apply are empty.
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

// ended is the error of a request's end that must not be mistaken for a result of the call that
// returns it: io.EOF means the end of all results, and ErrCanceled a canceled wait.
type ended struct{ error }

// endedBy wraps the error of a request's end in ended where it needs that.
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

// locationIn finds the StageError in an error, if it names this stage: a handler may return an error of
// another request.
func locationIn(err error, stage string) (at *StageError, ok bool) {
	at, ok = errors.AsType[*StageError](err)
	return at, ok && at.Stage == stage
}

// TextWithoutLocation is the text of err, which wraps e, without the location that e adds.
func (e *StageError) TextWithoutLocation(err error) string {
	return strings.Replace(err.Error(), e.Error(), e.Err.Error(), 1)
}
