package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// peerStage is the first stage of a bus, and in most rows the only one.
const peerStage = "peer"

// stageName is the name of one of the stages.
func stageName(which int) string {
	if which == 0 {
		return peerStage
	}
	return peerStage + strconv.Itoa(which)
}

// A hosted is a bus that other processes attach to.
type hosted struct {
	bus    *bus.Bus
	server *host.Server
}

// hostFor opens a bus and its server. The stages are served by other processes, and are side by side or
// in a row.
func hostFor(ctx context.Context, spec peerSpec, store shmstore.Options) (h hosted, err error) {
	// One is enough for a stream, and makes the edges' windows larger.
	inflight, requests := 1, 1
	if spec.Flight > 0 {
		inflight, requests = max(spec.Flight, bus.DefaultMaxInflight), max(2*spec.Flight, bus.DefaultMaxRequests)
	}
	var line bus.Pipeline
	for i := range spec.workers() {
		line.Stages = append(line.Stages, bus.StageSpec{Name: stageName(i), Remote: &bus.Remote{}, MaxInflight: inflight})
		if i > 0 && spec.Chain > 0 {
			line.Edges = append(line.Edges, bus.Edge{From: stageName(i - 1), To: stageName(i)})
		}
	}
	if h.bus, err = bus.Open(ctx, line, bus.Options{Store: store, MaxRequests: requests, Serializer: codec.RawSerializer{}}); err != nil {
		return h, err
	}
	h.server, err = host.Listen(h.bus, spec.Socket, host.ListenOptions{})
	return h, err
}

// close closes the server and the bus, as far as they were opened.
func (h hosted) close(ctx context.Context) error {
	var errs []error
	if h.server != nil {
		errs = append(errs, h.server.Close(ctx))
	}
	if h.bus != nil {
		errs = append(errs, h.bus.Close(ctx))
	}
	return errors.Join(errs...)
}

// A busSide is a bus whose stages are processes. Its host is a process of its own, or this
// process. This process calls, as a node or as the host.
type busSide struct {
	*cluster
	hosted  hosted     // set if the host calls
	node    *node.Node // nil: the host calls
	submit  func(context.Context, any, ...bus.SubmitOption) (*bus.Request, error)
	request *bus.Request // of all messages; nil: each message is a request of its own
	spec    peerSpec
	source  []byte
}

func openBusSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &busSide{cluster: c, spec: spec, source: touched(spec.Pattern.Size)}
	// The first run waits until the stages are served, the next ones until deliveries take the
	// direct path.
	return warmedUp(ctx, s, c, spec, s.open(ctx))
}

func (s *busSide) open(ctx context.Context) (err error) {
	spec := s.spec
	spec.Socket = s.path("host")
	if spec.HostCalls {
		s.hosted, err = hostFor(ctx, spec, shmstore.Options{Memory: shmstore.Shared})
	} else {
		_, err = s.start(ctx, spec.as(byBusHost))
	}
	if err != nil {
		return err
	}
	for spec.Which = range spec.workers() {
		if err := s.add(startPeer(ctx, s.opts, spec.as(byNode), nil)); err != nil {
			return err
		}
	}
	var caller interface {
		Submit(context.Context, any, ...bus.SubmitOption) (*bus.Request, error)
		Stream(context.Context, ...bus.SubmitOption) (*bus.Request, error)
	} = s.hosted.bus
	if !spec.HostCalls {
		if s.node, err = node.Join(ctx, "bench", node.JoinOptions{Socket: spec.Socket, Serializer: codec.RawSerializer{}}); err != nil {
			return err
		}
		caller = s.node
	}
	if s.submit = caller.Submit; spec.Flight == 0 {
		s.request, err = caller.Stream(ctx)
	}
	return err
}

// serveHost is the process that hosts a bus.
func serveHost(ctx context.Context, spec peerSpec) error {
	h, err := hostFor(ctx, spec, shmstore.Options{Memory: shmstore.Shared})
	if err != nil {
		return errors.Join(err, h.close(ctx))
	}
	if err := ready(""); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (s *busSide) run(ctx context.Context, n int) (time.Duration, error) {
	return s.timed(ctx, func(ctx context.Context) error {
		if s.spec.Flight > 0 {
			return s.spec.requests(ctx, n, s.singleRequest)
		}
		return s.stream(ctx, n)
	})
}

// singleRequest makes a request of one message.
func (s *busSide) singleRequest(ctx context.Context) error {
	r, err := s.submit(ctx, s.source)
	if err != nil {
		return err
	}
	results := 0
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		if err := s.check(d.Bytes()); err != nil {
			return err
		}
		results++
	}
	if results != 1 {
		return fmt.Errorf("a request of one message has %d results", results)
	}
	return nil
}

func (s *busSide) stream(ctx context.Context, n int) error {
	defer context.AfterFunc(ctx, func() { s.request.Abort(context.Cause(ctx)) })()
	in := s.request.Input(ctx)
	for range n {
		for range s.spec.Pattern.Every {
			if err := in.EmitBytes(s.source); err != nil {
				return err
			}
		}
		for range s.spec.answers() {
			d, err := s.request.Recv(ctx)
			if err != nil {
				return err
			}
			if err := errors.Join(s.check(d.Bytes()), d.Finish(nil)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *busSide) check(answer []byte) error {
	if len(answer) != s.spec.Pattern.Answer {
		return fmt.Errorf("an answer of %d bytes instead of %d", len(answer), s.spec.Pattern.Answer)
	}
	return readAll(answer)
}

func (s *busSide) close(ctx context.Context) error {
	var errs []error
	if s.request != nil {
		s.request.Close()
	}
	if s.node != nil {
		errs = append(errs, s.node.Close(ctx))
	}
	return errors.Join(append(errs, s.cluster.close(ctx), s.hosted.close(ctx))...)
}

// serveNode is the process of a stage. It runs until standard input ends.
func serveNode(ctx context.Context, spec peerSpec, stdin io.Reader) error {
	node, err := node.Join(ctx, "bench", node.JoinOptions{Socket: spec.Socket})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	answer, read := touched(spec.Pattern.Answer), 0
	err = node.Serve(ctx, bus.StageSpec{Name: stageName(spec.Which), Handle: func(t *bus.Task, d *bus.Delivery) error {
		if err := readAll(d.Bytes()); err != nil {
			return err
		}
		if read++; read < spec.Pattern.Every {
			return nil
		}
		read = 0
		return t.EmitBytes(answer)
	}})
	return errors.Join(err, node.Close(context.WithoutCancel(ctx)))
}
