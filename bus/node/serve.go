package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// serveCall is a call of Serve.
type serveCall struct {
	specs []bus.StageSpec
	link  *link // where they were served last, or are about to be; guarded by the node's mu
}

// Serve has this process do the work of stages of the host's pipeline, which
// are Remote there, until the context ends, or the host drains or is gone. With
// JoinOptions.Rejoin it goes on at the next host. Where the pipeline says something about a stage, it wins. When the
// context ends, the node gets no more work of these stages, and what has begun is
// finished first. It is the same where the host refuses
// a stage when it has taken others, of which none is served on; but what they have begun
// is waited for until the context ends, and no longer.
func (n *Node) Serve(ctx context.Context, specs ...bus.StageSpec) error {
	for i, spec := range specs {
		if spec.Remote != nil {
			return fmt.Errorf("%w: stage %q: a node does the work itself: Remote is for the host", bus.ErrConfig, spec.Name)
		}
		var err error
		if specs[i], err = spec.Checked(); err != nil {
			return err
		}
	}
	call := &serveCall{specs: specs}
	l, err := n.addCall(ctx, call)
	if err != nil {
		return err
	}
	defer n.removeCall(call)
	for i, spec := range specs {
		err := n.serve(ctx, l, call, spec)
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, bus.ErrHostGone) && n.rejoins():
			return n.awaitServeEnd(ctx, call) // which leaves, or waits for the next host
		case i > 0:
			n.opts.Logger.Error("one stage cannot be served, and so the others are not: what they have begun is finished first",
				slog.String("stage", spec.Name), slog.Any("error", err))
			n.leaveCall(ctx, call)
			return err
		default:
			return err
		}
	}
	return n.awaitServeEnd(ctx, call)
}

// addCall notes a call of Serve, for the host that it gives, and those that come behind.
func (n *Node) addCall(ctx context.Context, call *serveCall) (*link, error) {
	for {
		l, err := n.awaitLink(ctx)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		now := n.link == l // else the next one may have been missed
		if now {
			call.link = l
			n.calls = append(n.calls, call)
		}
		n.mu.Unlock()
		if now {
			return l, nil
		}
	}
}

// removeCall forgets it, and says to which host, if there is one, it may have been told.
func (n *Node) removeCall(call *serveCall) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = slices.DeleteFunc(n.calls, func(c *serveCall) bool { return c == call })
	return n.link
}

// leaveCall takes leave of the host, and waits until what has begun is finished, or the
// context ends.
func (n *Node) leaveCall(ctx context.Context, call *serveCall) {
	if l := n.removeCall(call); l != nil { // the next one may be there already
		awaitIdle(ctx, l.leaveStages(call))
	}
}

// leaveStages has the host open no more tasks of a call's stages. One that it has not
// said to be served yet follows when it does: see serve.
func (l *link) leaveStages(call *serveCall) (left []*nodeStage) {
	left = l.stagesOf(call)
	if len(left) == 0 {
		return nil // no number would be all of them
	}
	m := &wire.Leave{}
	for _, st := range left {
		m.Stages = append(m.Stages, st.number)
	}
	l.Queue(m)
	return left
}

// stagesOf are those that the host has said to be served by a call.
func (l *link) stagesOf(call *serveCall) []*nodeStage {
	return slices.DeleteFunc(l.work.servedStages(), func(st *nodeStage) bool { return st.call != call })
}

// isServing reports whether a call has not ended.
func (n *Node) isServing(call *serveCall) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.calls, call)
}

// awaitServeEnd waits for a reason to stop serving.
func (n *Node) awaitServeEnd(ctx context.Context, call *serveCall) error {
	for {
		l, err := n.awaitLink(ctx)
		switch {
		case ctx.Err() != nil && l == nil:
			return nil // told to stop while there was no host
		case err != nil:
			return err
		}
		select {
		case <-ctx.Done():
			n.leaveCall(context.Background(), call)
			return nil
		case <-l.drained:
			awaitIdle(context.Background(), l.stagesOf(call))
			if !n.opts.Rejoin || os.Getenv(EnvReplica) != "" {
				return nil
			}
			select { // the next host is there when this one has ended
			case <-ctx.Done():
			case <-l.done:
			}
		case <-l.done:
			if !n.opts.Rejoin {
				<-n.done
				return l.state.hostErr()
			}
		}
	}
}

// serveAll serves the node's stages at a new host.
func (n *Node) serveAll(l *link) {
	var calls []*serveCall
	n.mu.Lock()
	for _, call := range n.calls {
		if call.link != l { // it does so itself
			call.link = l
			calls = append(calls, call)
		}
	}
	n.mu.Unlock()
	for _, call := range calls {
		n.serveAgain(l, call)
	}
}

// serveAgain serves the stages of a call at a new host.
func (n *Node) serveAgain(l *link, call *serveCall) {
	for _, spec := range call.specs {
		if err := n.serve(n.ctx, l, call, spec); err != nil {
			n.opts.Logger.Error("serve a stage at the new host", slog.String("stage", spec.Name), slog.Any("error", err))
		}
	}
}
