package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// openSide sets up this process's part of a side, and starts the peer.
func openSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	switch spec.Carrier {
	case byLane, byHandle, byOffer, byPages:
		return openLaneSide(ctx, opts, spec)
	case byFloor:
		return openFloorSide(ctx, opts, spec)
	case byStream, byPackets:
		return openSocketSide(ctx, opts, spec)
	case byShmipc:
		return openShmipcSide(ctx, opts, spec)
	case byNode, byDirect, byBus:
		return openNodeSide(ctx, opts, spec)
	case byPython, byForward:
		return openPythonSide(ctx, opts, spec)
	case byQueue:
		return openQueueSide(ctx, spec)
	case byRing, bySegment, byVLLMOmni:
		return openValueSide(ctx, opts, spec)
	case bySockets:
		return openSocketsSide(ctx, opts, spec)
	case byGRPC:
		return openGRPCSide(ctx, opts, spec)
	case byNATS:
		return openNATSSide(ctx, opts, spec)
	case byPythonPair:
		return openPythonPair(ctx, opts, spec)
	case byZMQ:
		return openZMQSide(ctx, opts, spec)
	case byLocalBus, byChannels, byActors:
		return openLocalSide(ctx, spec)
	case byBusHost, bySocketRelay, byGRPCRelay, byNATSServer: // are parts of others
	case byGPU, byGPUHolder, byNothing: // have no side: see openGPUPair and openGPUReclaim
	}
	return nil, fmt.Errorf("%w: no carrier %q", ErrOptions, spec.Carrier)
}

// runPeer is the peer's part. It ends when standard input does.
func runPeer(ctx context.Context, spec peerSpec, stdin io.Reader) error {
	if spec.Carrier == byNode || spec.Carrier == byDirect {
		return serveNode(ctx, spec, stdin)
	}
	if spec.Carrier == byNothing {
		return untilHungUp(stdin, computeForever)
	}
	if spec.Carrier == byGPU {
		return serveGPU(ctx, spec, stdin)
	}
	if spec.Carrier == byGPUHolder {
		return serveGPUHolder(ctx, spec, stdin)
	}
	if serve, ok := servers[spec.Carrier]; ok {
		return untilHungUp(stdin, func() error { return serve(ctx, spec) })
	}
	c, err := openPeerCarrier(spec)
	if err != nil {
		return err
	}
	return untilHungUp(stdin, func() error {
		if spec.spins() {
			if _, err := pin(1); err != nil { // for good
				return err
			}
		}
		return answerAll(c, spec.Pattern)
	})
}

// servers are the processes of the table of peers but for the stages of a bus.
var servers = map[carrierName]func(context.Context, peerSpec) error{
	byBusHost:     serveHost,
	bySockets:     serveSockets,
	bySocketRelay: serveSocketRelay,
	byGRPC:        serveGRPC,
	byGRPCRelay:   serveGRPC,
	byNATS:        serveNATS,
	byNATSServer:  serveNATSServer,
}

// untilHungUp runs f until it fails, or standard input ends.
func untilHungUp(stdin io.Reader, f func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- f() }()
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(over)
	}()
	select {
	case err := <-answered:
		select {
		case <-over: // the parent closed its end before it told us
			return nil
		default:
			return err
		}
	case <-over:
		return nil // and what the goroutine holds goes with the process
	}
}

func openPeerCarrier(spec peerSpec) (carrier, error) {
	switch spec.Carrier {
	case byStream, byPackets:
		conn, err := fileConn(firstFile)
		if err != nil {
			return nil, err
		}
		return newSocketCarrier(conn, spec.Pattern), nil
	case byShmipc:
		return callShmipc(spec.Socket, spec.Pattern)
	case byLane:
		return openLanes(spec.Waiting, firstFile)
	case byFloor:
		return openFloor(spec, firstFile)
	default: // by handle, of whichever kind
	}
	l, err := openLanes(spec.Waiting, firstFile)
	if err != nil {
		return nil, err
	}
	conn, err := fileConn(firstFile + laneFiles)
	if err != nil {
		return nil, err
	}
	c, err := newHandleCarrier(l, conn.(*net.UnixConn), spec, spec.Pattern.Answer)
	if err != nil {
		return nil, err
	}
	err = c.attach(false)
	return c, err
}

// newCarried is a side with a carrier, once the peer is there.
func newCarried(c carrier, p *peer, spec peerSpec) *carried {
	p.onExit(c.fail)
	return &carried{carrier: c, peer: p, pattern: spec.Pattern, source: touched(int64(spec.Pattern.Size)), pinned: spec.spins()}
}

func openSocketSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	kind := unix.SOCK_STREAM
	if spec.Carrier == byPackets {
		kind = unix.SOCK_SEQPACKET
	}
	conn, theirs, err := socketPair(kind)
	if err != nil {
		return nil, err
	}
	defer func() { _ = theirs.Close() }() // the peer has its own
	c := newSocketCarrier(conn, spec.Pattern)
	p, err := startPeer(ctx, opts, spec, []*os.File{theirs})
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return newCarried(c, p, spec), nil
}

func openLaneSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	l, files, err := makeLanes(spec.Waiting)
	if err != nil {
		return nil, err
	}
	defer func() { closeFiles(files) }()
	if spec.Carrier == byLane {
		return startLanePeer(ctx, opts, spec, l, files)
	}
	conn, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	files = append(files, theirs)
	c, err := newHandleCarrier(l, conn.(*net.UnixConn), spec, spec.Pattern.Size)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return startLanePeer(ctx, opts, spec, c, files)
}

func startLanePeer(ctx context.Context, opts Options, spec peerSpec, c carrier, files []*os.File) (side, error) {
	p, err := startPeer(ctx, opts, spec, files)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	if h, ok := c.(*handleCarrier); ok {
		err = h.attach(true)
	}
	if err != nil {
		return nil, errors.Join(p.abandon(err), c.close())
	}
	return newCarried(c, p, spec), nil
}

func openShmipcSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	ln, remove, err := listen()
	if err != nil {
		return nil, err
	}
	defer remove()
	spec.Socket = ln.Addr().String()
	p, err := startPeer(ctx, opts, spec, nil)
	if err != nil {
		return nil, err
	}
	conn, err := p.accept(ln)
	if err != nil {
		return nil, p.abandon(err)
	}
	c, err := acceptShmipc(conn, spec.Pattern)
	if err != nil {
		return nil, p.abandon(err)
	}
	return newCarried(c, p, spec), nil
}

// spins reports whether both processes spin, each on a processor of its own.
func (s peerSpec) spins() bool { return s.Waiting == "spinning" }

// pin keeps the goroutine on one of the processors that the process may use,
// the n-th of them, if there are so many. Two sides that spin on the same one
// only keep each other from working.
func pin(n int) (unpin func(), err error) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("find the processors: %w", err)
	}
	if n >= all.Count() {
		return func() {}, nil
	}
	for cpu := 0; ; cpu++ {
		if all.IsSet(cpu) {
			if n == 0 {
				one.Set(cpu)
				break
			}
			n--
		}
	}
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("choose a processor: %w", err)
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &all)
		runtime.UnlockOSThread()
	}, nil
}

// socketPair makes a connection of which one end is to be passed on.
func socketPair(kind int) (ours net.Conn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "socket")
	if ours, err = fileConn(fds[0]); err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return ours, theirs, nil
}

// fileConn makes a connection of a descriptor, which it takes over.
func fileConn(fd int) (net.Conn, error) {
	f := os.NewFile(uintptr(fd), "socket")
	defer func() { _ = f.Close() }() // the connection has its own
	return net.FileConn(f)
}
