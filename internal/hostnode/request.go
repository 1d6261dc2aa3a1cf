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
	// DeathGrace is how long a process may take to die after its socket has closed: the kernel closes a
	// dying process's descriptors, and frees its memory, before the process is dead.
	DeathGrace = 2 * time.Second
	// MaxNodeOffered is how many segments a node offers its host at a time.
	MaxNodeOffered = 32
	// MethodTensors is the call by which a process tells the host its figures of tensors on GPUs since
	// it connected, as lane.Stats of package cudaipc/lane in JSON. The host cannot count them: it does
	// not see why tensors take another way.
	MethodTensors = "tensors"
)

// Lane returns the lane options of a wait mode.
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

// RequestID returns the ID of a request that a node has numbered itself.
func RequestID(node, source uint32) messages.RequestID {
	return messages.RequestID(uint64(node)<<32 | uint64(source&^wire.OwnSource))
}

// TimeLeft encodes a deadline for a message that is sent now.
func TimeLeft(deadline time.Time) int64 {
	if deadline.IsZero() {
		return 0
	}
	left := int64(time.Until(deadline))
	if left == 0 {
		return -1 // 0 means no deadline
	}
	return left
}

// DeadlineOf decodes the deadline of a message that has come now, on the monotonic clock; zero: none.
func DeadlineOf(left int64) (deadline time.Time) {
	if left == 0 {
		return deadline
	}
	return time.Now().Add(time.Duration(left))
}

// Trace encodes a trace.
func Trace(t messages.TraceContext) wire.Trace {
	return wire.Trace{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}

// TraceOf decodes a trace.
func TraceOf(t wire.Trace) messages.TraceContext {
	return messages.TraceContext{TraceID: t.TraceID, SpanID: t.SpanID, Flags: t.Flags, State: t.State}
}

// Over makes the message that says how a request ended.
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

// OutcomeOf returns the outcome and error of a request, as they were at the host.
func OutcomeOf(m *wire.Over) (bus.Outcome, error) {
	switch o := bus.Outcome(m.Outcome); {
	case o == bus.Completed:
		return o, nil
	case o == bus.Aborted:
		return o, &remoteError{bus.ErrAborted, &wire.Error{Code: wire.CodeOver, Text: m.Text}}
	case o == bus.PastDeadline:
		return o, &remoteError{bus.ErrDeadline, &wire.Error{Code: wire.CodeOver, Text: m.Text}}
	case m.Outcome == wire.OutcomeRefused:
		err := Error(&wire.Failed{Code: wire.Code(m.Code), Text: m.Text})
		if errors.Is(err, bus.ErrEnded) { // before it began; the host answers so at the deadline
			return bus.PastDeadline, fmt.Errorf("%w: %w", bus.ErrDeadline, err)
		}
		return bus.Failed, err
	case m.Stage == "" && m.Edge == "":
		return bus.Failed, errors.New(m.Text)
	}
	return bus.Failed, &bus.StageError{Stage: m.Stage, Edge: m.Edge, Key: m.Key, Seq: m.Seq, Err: errors.New(m.Text)}
}
