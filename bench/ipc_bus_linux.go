package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// peerStage is the stage that the peer serves.
const peerStage = "peer"

// A hosted is a bus that other processes attach to.
type hosted struct {
	bus    *bus.Bus
	server *bus.Server
}

// host opens a bus of one stage, which another process serves or nobody, and has it listen.
func host(ctx context.Context, socket string, store shmstore.Options) (h hosted, err error) {
	line := bus.Pipeline{Stages: []bus.StageSpec{{Name: peerStage, Remote: &bus.Remote{}, MaxInflight: 1}}}
	if h.bus, err = bus.Open(ctx, line, bus.Options{Store: store, MaxRequests: 1}); err != nil {
		return h, err
	}
	h.server, err = h.bus.Listen(socket, bus.ListenOptions{})
	return h, err
}

// close closes what there is of it.
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

// A busSide sends the inputs of one request to a stage in another process, and
// receives its results.
type busSide struct {
	hosted
	dir     string
	caller  *bus.Node // that sends the inputs; nil: the host does
	peer    *peer
	request *bus.Request
	pattern pattern
	source  []byte
}

// openBusSide opens a bus of one stage, starts the peer that is to serve it,
// and opens a request: of the host's, or of a node that exchanges payloads with
// the peer directly.
func openBusSide(ctx context.Context, p pattern, direct bool, startPeer func(socket string) (*peer, error)) (side, error) {
	s := &busSide{pattern: p, source: touched(int64(p.Size))}
	err := s.open(ctx, direct, startPeer)
	if err != nil {
		if s.peer != nil {
			err = s.peer.explain(err)
		}
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *busSide) open(ctx context.Context, direct bool, startPeer func(socket string) (*peer, error)) (err error) {
	if s.dir, err = os.MkdirTemp("", "omnibus-bench"); err != nil {
		return err
	}
	socket := filepath.Join(s.dir, "socket")
	if s.hosted, err = host(ctx, socket, shmstore.Options{ArenaBytes: s.pattern.busBytes(), Memory: shmstore.Shared}); err != nil {
		return err
	}
	if s.peer, err = startPeer(socket); err != nil {
		return err
	}
	stream := s.bus.Stream
	if direct {
		if s.caller, err = bus.Join(ctx, "bench", bus.JoinOptions{Socket: socket}); err != nil {
			return err
		}
		stream = s.caller.Stream
	}
	if s.request, err = stream(ctx); err != nil {
		return err
	}
	s.peer.onExit(s.request.Abort)
	// The first run waits for the peer to serve, and the next ones until the
	// host is out of the way.
	_, err = s.run(ctx, 4)
	return err
}

func (s *busSide) run(ctx context.Context, n int) (time.Duration, error) {
	in := s.request.Input(ctx)
	start := time.Now()
	for range n {
		for range s.pattern.Every {
			if err := in.EmitBytes(s.source); err != nil {
				return 0, err
			}
		}
		d, err := s.request.Recv(ctx)
		if err != nil {
			return 0, err
		}
		if err := errors.Join(s.check(d.Bytes()), d.Finish(nil)); err != nil {
			return 0, err
		}
	}
	return time.Since(start), nil
}

func (s *busSide) check(answer []byte) error {
	if len(answer) != s.pattern.Answer {
		return fmt.Errorf("an answer of %d bytes instead of %d", len(answer), s.pattern.Answer)
	}
	return touchAll(answer)
}

func (s *busSide) close(ctx context.Context) error {
	var errs []error
	if s.request != nil {
		s.request.Close()
	}
	if s.caller != nil {
		errs = append(errs, s.caller.Close(ctx))
	}
	if s.peer != nil {
		errs = append(errs, s.peer.close())
	}
	return errors.Join(append(errs, s.hosted.close(ctx), os.RemoveAll(s.dir))...)
}

func openNodeSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	return openBusSide(ctx, spec.Pattern, spec.Carrier == byDirect, func(socket string) (*peer, error) {
		spec.Socket = socket
		return startPeer(ctx, opts, spec, nil)
	})
}

// serveNode is the peer of a busSide, until standard input ends.
func serveNode(ctx context.Context, spec peerSpec, stdin io.Reader) error {
	node, err := bus.Join(ctx, "bench", bus.JoinOptions{Socket: spec.Socket})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		cancel()
	}()
	answer := touched(int64(spec.Pattern.Answer))
	read := 0
	err = node.Serve(ctx, bus.StageSpec{Name: peerStage, Handle: func(t *bus.Task, d *bus.Delivery) error {
		if err := touchAll(d.Bytes()); err != nil {
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
