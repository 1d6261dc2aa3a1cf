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
	link  *link // the last link at which the stages are or will be served; guarded by the node's mu
}

// Serve runs the handlers of stages that are Remote in the host's pipeline, until the context ends,
// the host drains, or the host is gone. With JoinOptions.Rejoin it continues at the next host. A
// setting of the pipeline overrides the same setting of a spec.
//
// When the context ends, the node gets no more work for these stages, and Serve returns after the
// open tasks are finished. When the host refuses a stage after it has accepted others, Serve leaves
// the accepted stages too, waits for their open tasks until the context ends, and returns the
// error.
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
			return n.awaitServeEnd(ctx, call) // leaves the stages, or waits for the next host
		case i > 0:
			n.opts.Logger.Error("a stage cannot be served: the others are left, and their open tasks are finished first",
				slog.String("stage", spec.Name), slog.Any("error", err))
			n.leaveCall(ctx, call)
			return err
		default:
			return err
		}
	}
	return n.awaitServeEnd(ctx, call)
}

// addCall registers a call of Serve at the current host, which it returns, and for later hosts.
func (n *Node) addCall(ctx context.Context, call *serveCall) (*link, error) {
	for {
		l, err := n.awaitLink(ctx)
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		now := n.link == l // otherwise serveAll of the next link may have run before
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

// removeCall unregisters the call. It returns the link of the current host, if any.
func (n *Node) removeCall(call *serveCall) *link {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.calls = slices.DeleteFunc(n.calls, func(c *serveCall) bool { return c == call })
	return n.link
}

// leaveCall unregisters the call, leaves its stages at the current host, and waits for their open
// tasks until the context ends.
func (n *Node) leaveCall(ctx context.Context, call *serveCall) {
	if l := n.removeCall(call); l != nil { // a host may have come since
		awaitIdle(ctx, l.leaveStages(call))
	}
}

// leaveStages asks the host to open no more tasks of a call's stages. A stage whose message Serving
// has not come yet is left when it comes: see serve.
func (l *link) leaveStages(call *serveCall) (left []*nodeStage) {
	left = l.stagesOf(call)
	if len(left) == 0 {
		return nil // a Leave without numbers leaves all stages of the node
	}
	m := &wire.Leave{}
	for _, st := range left {
		m.Stages = append(m.Stages, st.number)
	}
	l.Queue(m)
	return left
}

// stagesOf are the stages of a call that the host has confirmed.
func (l *link) stagesOf(call *serveCall) []*nodeStage {
	return slices.DeleteFunc(l.work.servedStages(), func(st *nodeStage) bool { return st.call != call })
}

// isServing reports whether the call is registered.
func (n *Node) isServing(call *serveCall) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Contains(n.calls, call)
}

// awaitServeEnd waits until Serve has to return, and leaves the stages if the context has ended.
func (n *Node) awaitServeEnd(ctx context.Context, call *serveCall) error {
	for {
		l, err := n.awaitLink(ctx)
		switch {
		case ctx.Err() != nil && l == nil:
			return nil // the context ended while there was no host
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
			select { // the next host comes after this link has ended
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
		if call.link != l { // otherwise Serve itself serves them
			call.link = l
			calls = append(calls, call)
		}
	}
	n.mu.Unlock()
	for _, call := range calls {
		n.serveAgain(l, call)
	}
}

// serveAgain serves the stages of one call at a new host.
func (n *Node) serveAgain(l *link, call *serveCall) {
	for _, spec := range call.specs {
		if err := n.serve(n.ctx, l, call, spec); err != nil {
			n.opts.Logger.Error("serve a stage at the new host", slog.String("stage", spec.Name), slog.Any("error", err))
		}
	}
}
