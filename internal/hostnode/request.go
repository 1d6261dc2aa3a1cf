package hostnode

import (
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

const (
	// DeathGrace is how long after its socket a process may take to die: the
	// kernel closes a victim's descriptors, and tears down its memory, before it
	// is dead.
	DeathGrace = 2 * time.Second
	// MaxNodeOffered is how many segments of memory a node names to its host at a time.
	MaxNodeOffered = 32
	// MethodTensors is the call by which a process tells the host its figures of tensors
	// on GPUs, as lane.Stats of package cudaipc/lane in JSON: what it has counted since it
	// connected. They are not the host's to count, since it does not see why tensors go
	// another way.
	MethodTensors = "tensors"
)

// Lane is how the lanes of a process wait.
func Lane(w bus.Wait) lane.Options {
	switch w {
	case bus.WaitPark:
		return lane.Options{Waiting: lane.Parked}
	case bus.WaitPoll:
		return lane.Options{Waiting: lane.Polling}
	case bus.WaitBalanced:
	}
	return lane.Options{Waiting: lane.Ladder}
}

// RequestID names the request that a node has numbered itself.
func RequestID(node, source uint32) messages.RequestID {
	return messages.RequestID(uint64(node)<<32 | uint64(source&^wire.OwnSource))
}

// TimeLeft is the time until a deadline as a message has it that is sent now.
func TimeLeft(deadline time.Time) int64 {
	if deadline.IsZero() {
		return 0
	}
	left := int64(time.Until(deadline))
	if left == 0 {
		return -1 // 0 would be none
	}
	return left
}

// DeadlineOf is the deadline of a message that has come now, by the monotonic clock; zero: it has none.
func DeadlineOf(left int64) (deadline time.Time) {
	if left == 0 {
		return deadline
	}
	return time.Now().Add(time.Duration(left))
}

// Trace is a trace as a message has it.
func Trace(t messages.TraceContext) wire.Trace {
	return wire.Trace{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}

// TraceOf is the trace that a message has.
func TraceOf(t wire.Trace) messages.TraceContext {
	return messages.TraceContext{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}

// Over says how a request ended.
func Over(source uint32, outcome bus.Outcome, err error) *wire.Over {
	m := &wire.Over{Source: source, Outcome: wire.Outcome(outcome)}
	if err == nil {
		return m
	}
	var at *bus.StageError
	if errors.As(err, &at) {
		m.Stage, m.Edge, m.Key, m.Seq, m.Text = at.Stage, at.Edge, at.Key, at.Seq, at.TextWithoutLocation(err)
	} else {
		m.Text = err.Error()
	}
	return m
}

// OutcomeOf makes the end of a request what it was at the host.
func OutcomeOf(m *wire.Over) (bus.Outcome, error) {
	switch o := bus.Outcome(m.Outcome); {
	case o == bus.Completed:
		return o, nil
	case o == bus.Aborted:
		return o, &saidError{bus.ErrAborted, &wire.Error{Code: wire.CodeOver, Text: m.Text}}
	case o == bus.PastDeadline:
		return o, &saidError{bus.ErrDeadline, &wire.Error{Code: wire.CodeOver, Text: m.Text}}
	case m.Outcome == wire.OutcomeRefused:
		err := Error(&wire.Failed{Code: wire.Code(m.Code), Text: m.Text})
		if errors.Is(err, bus.ErrEnded) { // before it began: the host says so at its deadline
			return bus.PastDeadline, fmt.Errorf("%w: %w", bus.ErrDeadline, err)
		}
		return bus.Failed, err
	case m.Stage == "" && m.Edge == "":
		return bus.Failed, errors.New(m.Text)
	}
	return bus.Failed, &bus.StageError{Stage: m.Stage, Edge: m.Edge, Key: m.Key, Seq: m.Seq, Err: errors.New(m.Text)}
}
