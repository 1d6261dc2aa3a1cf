package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A socketsSide is processes connected by stream sockets: one, several side by side, or several
// in a row, where each sends to the next and the last to this process.
type socketsSide struct {
	*cluster
	out, in []net.Conn
	spec    peerSpec
	source  []byte
	buffer  []byte
}

func openSocketsSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &socketsSide{cluster: c, spec: spec, source: touched(spec.Pattern.Size), buffer: make([]byte, spec.Pattern.Answer)}
	return warmedUp(ctx, s, c, spec, s.open(ctx))
}

func (s *socketsSide) open(ctx context.Context) error {
	if s.spec.Chain > 0 {
		return s.openChain(ctx)
	}
	for range s.spec.workers() {
		conn, theirs, err := socketPair(unix.SOCK_STREAM)
		if err != nil {
			return err
		}
		s.out, s.in = append(s.out, conn), append(s.in, conn)
		if s.spec.Relayed {
			if theirs, err = s.relay(ctx, theirs); err != nil {
				return err
			}
		}
		if err := s.launch(ctx, s.spec, theirs); err != nil {
			return err
		}
	}
	return nil
}

// launch starts a process with files, and closes them here.
func (s *socketsSide) launch(ctx context.Context, spec peerSpec, files ...*os.File) error {
	defer closeFiles(files)
	return s.add(startPeer(ctx, s.opts, spec, files))
}

// relay starts a process that relays between theirs and a new socket, and returns the other end of
// the new socket.
func (s *socketsSide) relay(ctx context.Context, theirs *os.File) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, errors.Join(err, theirs.Close())
	}
	spec := s.spec
	spec.Carrier = bySocketRelay
	return os.NewFile(uintptr(fds[1]), "socket"), s.launch(ctx, spec, theirs, os.NewFile(uintptr(fds[0]), "socket"))
}

func (s *socketsSide) openChain(ctx context.Context) error {
	first, from, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return err
	}
	s.out = []net.Conn{first}
	for range s.spec.Chain - 1 {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return errors.Join(err, from.Close())
		}
		if err := s.launch(ctx, s.spec, from, os.NewFile(uintptr(fds[0]), "socket")); err != nil {
			return err
		}
		from = os.NewFile(uintptr(fds[1]), "socket")
	}
	last, to, err := socketPair(unix.SOCK_STREAM)
	if err != nil {
		return errors.Join(err, from.Close())
	}
	s.in = []net.Conn{last}
	return s.launch(ctx, s.spec, from, to)
}

func (s *socketsSide) run(ctx context.Context, n int) (time.Duration, error) {
	return s.timed(ctx, func(ctx context.Context) error {
		// Reads and writes of the sockets do not end with the context: hangUp ends them.
		defer context.AfterFunc(ctx, s.hangUp)()
		if s.spec.Flight > 0 {
			return s.pipelined(n)
		}
		return s.stream(n)
	})
}

func (s *socketsSide) stream(n int) error {
	for range n {
		for range s.spec.Pattern.Every {
			for _, conn := range s.out {
				if _, err := conn.Write(s.source); err != nil {
					return err
				}
			}
		}
		for _, conn := range s.in {
			if err := s.receive(conn); err != nil {
				return err
			}
		}
	}
	return nil
}

// pipelined sends a message for each answer, with as many in flight as the spec says.
func (s *socketsSide) pipelined(n int) error {
	sent := 0
	for received := range n {
		for ; sent < min(n, received+s.spec.Flight); sent++ {
			if _, err := s.out[0].Write(s.source); err != nil {
				return err
			}
		}
		if err := s.receive(s.in[0]); err != nil {
			return err
		}
	}
	return nil
}

func (s *socketsSide) receive(conn net.Conn) error {
	if _, err := io.ReadFull(conn, s.buffer); err != nil {
		return err
	}
	return readAll(s.buffer)
}

func (s *socketsSide) hangUp() {
	for _, conn := range append(s.out, s.in...) {
		_ = conn.Close()
	}
}

func (s *socketsSide) close(ctx context.Context) error {
	s.hangUp()
	return s.cluster.close(ctx)
}

// serveSockets is a process that reads from a socket. In a chain it answers on a second one.
func serveSockets(_ context.Context, spec peerSpec) error {
	in, err := fileConn(firstFile)
	if err != nil {
		return err
	}
	out := in
	if spec.Chain > 0 {
		if out, err = fileConn(firstFile + 1); err != nil {
			return err
		}
	}
	payload, answer := make([]byte, spec.Pattern.Size), touched(spec.Pattern.Answer)
	for {
		for range spec.Pattern.Every {
			if _, err := io.ReadFull(in, payload); err != nil {
				return ignoreClosed(err)
			}
			if err := readAll(payload); err != nil {
				return err
			}
		}
		if _, err := out.Write(answer); err != nil {
			return ignoreClosed(err)
		}
	}
}

// serveSocketRelay copies between two sockets, in both directions.
func serveSocketRelay(context.Context, peerSpec) error {
	a, err := fileConn(firstFile)
	if err != nil {
		return err
	}
	b, err := fileConn(firstFile + 1)
	if err != nil {
		return err
	}
	ended := make(chan error, 2)
	pass := func(from, to net.Conn) {
		buffer := make([]byte, 64*kib)
		for {
			n, err := from.Read(buffer)
			if err == nil {
				_, err = to.Write(buffer[:n])
			}
			if err != nil {
				ended <- ignoreClosed(err)
				return
			}
		}
	}
	go pass(a, b)
	go pass(b, a)
	return <-ended
}

// ignoreClosed returns nil where the other end of a socket is closed: standard input ends as well then.
func ignoreClosed(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET) {
		return nil
	}
	return err
}

// socketPair makes a connection, with one end for another process.
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

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
