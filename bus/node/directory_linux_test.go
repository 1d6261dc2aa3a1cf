package node_test

import (
	"context"
	"errors"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// named is a name with a number.
func named(number uint32) lane.Name { return lane.Name{Pool: [16]byte{1, 2, 15: 16}, Number: number} }

// someFile is a descriptor to publish.
func someFile(t testing.TB) *os.File {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "published")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func mustPublish(t testing.TB, d lane.Directory, name lane.Name, f *os.File, sizeBytes int64) {
	t.Helper()
	if err := d.Publish(t.Context(), name, int(f.Fd()), sizeBytes); err != nil {
		t.Fatalf("publish %d: %v", name.Number, err)
	}
}

// mustFind finds a descriptor, which is closed at the end of the test.
func mustFind(t testing.TB, d lane.Directory, name lane.Name) lane.Found {
	t.Helper()
	found, err := d.Find(t.Context(), name)
	if err != nil {
		t.Fatalf("find %d: %v", name.Number, err)
	}
	t.Cleanup(func() { _ = unix.Close(found.FD) })
	return found
}

func wantNotPublished(t testing.TB, d lane.Directory, name lane.Name) {
	t.Helper()
	found, err := d.Find(t.Context(), name)
	if err == nil {
		_ = unix.Close(found.FD)
	}
	if !errors.Is(err, lane.ErrNotPublished) || errors.Is(err, lane.ErrUnavailable) {
		t.Errorf("find %d: %v, want ErrNotPublished", name.Number, err)
	}
}

// wantSame requires that the found descriptor is the published one.
func wantSame(t testing.TB, found lane.Found, f *os.File, sizeBytes int64) {
	t.Helper()
	var want, got unix.Stat_t
	if err := errors.Join(unix.Fstat(int(f.Fd()), &want), unix.Fstat(found.FD, &got)); err != nil {
		t.Fatal(err)
	}
	flags, err := unix.FcntlInt(uintptr(found.FD), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("the descriptor is inherited by programs: flags %#x, %v", flags, err)
	}
	if got.Ino != want.Ino || got.Dev != want.Dev || found.FD == int(f.Fd()) || found.SizeBytes != sizeBytes {
		t.Errorf("found the file %d of %d bytes as descriptor %d, want a duplicate of %d (file %d), %d bytes",
			got.Ino, found.SizeBytes, found.FD, f.Fd(), want.Ino, sizeBytes)
	}
	select {
	case <-found.Owner.Done():
		t.Error("the owner is reported dead")
	default:
	}
}

// TestDirectory: a descriptor that one end publishes is found by the other, until it is withdrawn.
func TestDirectory(t *testing.T) {
	for name, ends := range map[string]func(t *testing.T, h *hosted) (a, b lane.Directory){
		"two nodes": func(t *testing.T, h *hosted) (a, b lane.Directory) {
			return h.join(t, node.JoinOptions{}).Directory(), h.join(t, node.JoinOptions{Rejoin: true}).Directory()
		},
		"host to node": func(t *testing.T, h *hosted) (a, b lane.Directory) {
			return h.bus.Directory(), h.join(t, node.JoinOptions{}).Directory()
		},
		"node to host": func(t *testing.T, h *hosted) (a, b lane.Directory) {
			return h.join(t, node.JoinOptions{}).Directory(), h.bus.Directory()
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			a, b := ends(t, h)
			f, other := someFile(t), someFile(t)
			wantNotPublished(t, b, named(1))
			mustPublish(t, a, named(1), f, 1<<30)
			mustPublish(t, b, named(2), other, 1<<46)
			for _, d := range []lane.Directory{a, b} {
				wantSame(t, mustFind(t, d, named(1)), f, 1<<30)
				wantSame(t, mustFind(t, d, named(2)), other, 1<<46)
				wantNotPublished(t, d, lane.Name{Pool: [16]byte{2}, Number: 1})
				if err := d.Publish(t.Context(), named(1), int(other.Fd()), 1); !errors.Is(err, lane.ErrPublished) {
					t.Errorf("publish a name that is taken: %v, want ErrPublished", err)
				}
			}
			kept := mustFind(t, b, named(1))
			b.Withdraw(named(1)) // not published by b
			wantSame(t, mustFind(t, b, named(1)), f, 1<<30)
			a.Withdraw(named(1))
			wantNotPublished(t, a, named(1)) // sent after the withdrawal
			wantNotPublished(t, b, named(1))
			wantSame(t, kept, f, 1<<30)
			mustPublish(t, a, named(1), other, 7)
			wantSame(t, mustFind(t, b, named(1)), other, 7)
			a.Withdraw(named(1))
			a.Withdraw(named(1))
			b.Withdraw(named(2))
		})
	}
}

// TestPublishRefuses: invalid arguments are refused, and no descriptor is leaked.
func TestPublishRefuses(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	f := someFile(t)
	wantNotPublished(t, n.Directory(), named(1)) // by then both have opened the lanes
	files := testbus.OpenFiles(t)
	for _, d := range []lane.Directory{h.bus.Directory(), n.Directory()} {
		for _, size := range []int64{0, -1, 1<<46 + 1, math.MaxInt64, math.MinInt64} {
			if err := d.Publish(t.Context(), named(1), int(f.Fd()), size); !errors.Is(err, cudaipc.ErrInvalid) {
				t.Errorf("publish %d bytes: %v, want ErrInvalid", size, err)
			}
		}
		for _, fd := range []int{-1, 1 << 30} {
			if err := d.Publish(t.Context(), named(1), fd, 1); !errors.Is(err, cudaipc.ErrInvalid) {
				t.Errorf("publish descriptor %d: %v, want ErrInvalid", fd, err)
			}
		}
		wantNotPublished(t, d, named(1))
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Find(ctx, named(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("find with a context that has ended: %v", err)
		}
		if err := d.Publish(ctx, named(1), int(f.Fd()), 1); !errors.Is(err, context.Canceled) {
			t.Errorf("publish with a context that has ended: %v", err)
		}
		wantNotPublished(t, d, named(1))
	}
	c := dialThin(t, h.path)
	for _, size := range []uint64{0, 1<<46 + 1, 1 << 63, math.MaxUint64} {
		if code := c.publish(named(1), f, size); code != wire.CodeInvalid {
			t.Errorf("publish %d bytes: %v, want invalid", size, code)
		}
	}
	c.send(&wire.Bye{})
	h.awaitProcesses(t, 1)
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files+1 }) // the thin client's end
}

// publish publishes a name, and returns the code of the answer.
func (c *thinClient) publish(name lane.Name, f *os.File, size uint64) wire.Code {
	c.t.Helper()
	packet, err := wire.Append(nil, &wire.Publish{Token: 1, Pool: name.Pool, Number: name.Number, Size: size}, 1)
	if err == nil {
		err = c.conn.Send(packet, []int{int(f.Fd())})
	}
	if err != nil {
		c.t.Fatal(err)
	}
	for {
		h, body, _, err := c.in.Next()
		if err != nil {
			c.t.Fatal(err)
		}
		switch m, err := wire.Parse(h, body); m := m.(type) {
		case *wire.Published:
			return wire.OK
		case *wire.Failed:
			return m.Code
		default:
			if err != nil || h.Kind != wire.KindWelcome {
				c.t.Fatalf("publish is answered with %+v, %v", m, err)
			}
		}
	}
}

// TestDirectoryIsBounded: the names of a client are bounded, and so are all names together. The
// descriptor of a refused name is closed, and a withdrawal makes space.
func TestDirectoryIsBounded(t *testing.T) {
	const each = 1024
	h := exchangeHost(t, bus.Options{})
	f := someFile(t)
	c, d := dialThin(t, h.path), dialThin(t, h.path)
	c.await(wire.KindWelcome)
	d.await(wire.KindWelcome)
	testbus.SetDirectoryLimit(t, h.bus, each+1)
	files := testbus.OpenFiles(t)
	want := func(c *thinClient, number uint32, want wire.Code) {
		t.Helper()
		if code := c.publish(named(number), f, 1); code != want {
			t.Fatalf("publish %d: %v, want %v", number, code, want)
		}
	}
	for i := range uint32(each) {
		want(c, i, wire.OK)
	}
	if n := testbus.OpenFiles(t); n != files+each {
		t.Errorf("%d descriptors are open for %d names", n-files, each)
	}
	want(c, each, wire.CodeOverloaded)
	want(c, 1, wire.CodeTaken)
	want(d, each, wire.OK)
	want(d, each+1, wire.CodeOverloaded)
	if err := h.bus.Directory().Publish(t.Context(), named(each+1), int(f.Fd()), 1); !errors.Is(err, lane.ErrFull) {
		t.Errorf("the host publishes one too many: %v, want ErrFull", err)
	}
	c.send(&wire.Withdraw{Pool: named(7).Pool, Number: 7})
	want(c, each+1, wire.OK)
	c.send(&wire.Bye{})
	h.awaitProcesses(t, 1)
	if n := testbus.Published(t, h.bus); n != 1 {
		t.Fatalf("%d names are left of one, when the process that has published the others has gone", n)
	}
	for i := range uint32(each) {
		wantNotPublished(t, h.bus.Directory(), named(i))
	}
	mustFind(t, h.bus.Directory(), named(each))
	d.send(&wire.Finish{Delivery: 1 << 30}) // refused: the client hangs up, and its process lives
	d.await(wire.KindRefuse)
	testbus.Await(t, func() bool { return testbus.Published(t, h.bus) == 0 })
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files+2 }) // the found descriptor, and the watch of its owner
}

// TestBadPublishers: a breach of the protocol ends the session, and its descriptors are closed.
func TestBadPublishers(t *testing.T) {
	for name, bad := range map[string]struct {
		want        string
		m           wire.Message
		descriptors int
	}{
		"answers the host":      {"found is not for the host", &wire.Found{}, 2},
		"finds with descriptor": {"1 descriptors", &wire.Find{}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			f := someFile(t)
			mustPublish(t, h.bus.Directory(), named(1), f, 1)
			c := dialThin(t, h.path)
			c.await(wire.KindWelcome)
			files := testbus.OpenFiles(t)
			least := bad.m.Kind().Descriptors()
			packet, err := wire.Append(nil, bad.m, least)
			if err != nil {
				t.Fatal(err)
			}
			packet[6] = byte(bad.descriptors)
			if err := c.conn.Send(packet, slices.Repeat([]int{int(f.Fd())}, bad.descriptors)); err != nil {
				t.Fatal(err)
			}
			if m := c.await(wire.KindRefuse).(*wire.Refuse); m.Code != wire.CodeProtocol || !strings.Contains(m.Text, bad.want) {
				t.Errorf("refused with %v, %q; want %q", m.Code, m.Text, bad.want)
			}
			testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files })
			if n := testbus.Published(t, h.bus); n != 1 {
				t.Errorf("%d names, want the host's", n)
			}
		})
	}
}

// TestFoundIsNotRead: a client that asks without reading gets an answer to every question in the
// end, and nothing is left over.
func TestFoundIsNotRead(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	files := testbus.OpenFiles(t)
	f := someFile(t)
	mustPublish(t, h.bus.Directory(), named(1), f, 1)
	c := dialThin(t, h.path)
	const questions = 2000
	for i := range uint32(questions) {
		c.send(&wire.Find{Token: i, Pool: named(1).Pool, Number: 1})
	}
	found, full := 0, 0
	for found+full < questions {
		hd, body, fds, err := c.in.Next()
		if err != nil {
			t.Fatalf("after %d found and %d not: %v", found, full, err)
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		m, err := wire.Parse(hd, body)
		if err != nil {
			t.Fatal(err)
		}
		switch m := m.(type) {
		case *wire.Found:
			found++
			if m.Owner != 0 || int(m.PID) != os.Getpid() || len(fds) != 2 {
				t.Errorf("%+v with %d descriptors, want those of the host", m, len(fds))
			}
		case *wire.Failed:
			full++
			if m.Code != wire.CodeOverloaded {
				t.Errorf("%+v, want that there is no room", m)
			}
		}
	}
	if found < 128 || full == 0 {
		t.Errorf("%d found and %d not", found, full)
	}
	c.send(&wire.Bye{})
	h.bus.Directory().Withdraw(named(1))
	h.awaitProcesses(t, 0)
	_ = f.Close()
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files+2 }) // the host's own pidfd, and the thin client's end
}

// TestOwnersAreWatchedOnce: all descriptors found of one process share one watch of it.
func TestOwnersAreWatchedOnce(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a, b := h.join(t, node.JoinOptions{}), h.join(t, node.JoinOptions{})
	f := someFile(t)
	for i := range uint32(10) {
		mustPublish(t, a.Directory(), named(i), f, 1)
	}
	for _, d := range []lane.Directory{b.Directory(), h.bus.Directory()} {
		first := mustFind(t, d, named(0))
		files := testbus.OpenFiles(t)
		for i := range uint32(10) {
			if found := mustFind(t, d, named(i)); found.Owner != first.Owner {
				t.Error("two watches of one process")
			}
		}
		if n := testbus.OpenFiles(t) - files; n != 10 {
			t.Errorf("%d descriptors are open for 10 found ones, want 10", n)
		}
	}
}

// TestFoundWithoutWaiterIsClosed: descriptors whose question is no longer open are closed;
// descriptors for a question of another kind end the connection.
func TestFoundWithoutWaiterIsClosed(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	mustPublish(t, n.Directory(), named(1), someFile(t), 1)
	mustFind(t, n.Directory(), named(1))
	files := testbus.OpenFiles(t)
	for range 5 {
		node.FindWithoutWaiter(t, n, named(1), 1<<31)
	}
	// The host closes its duplicates after it has sent them.
	testbus.Await(t, func() bool { return testbus.OpenFiles(t) <= files })
	wantNotPublished(t, n.Directory(), named(2))
}

// TestDirectoryCloses: the directory closes with the bus, and with the node.
func TestDirectoryCloses(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{Rejoin: true})
	f := someFile(t)
	mustPublish(t, n.Directory(), named(1), f, 1)
	mustFind(t, n.Directory(), named(1))
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, n.Directory(), f)
	wantNotPublished(t, h.bus.Directory(), named(1))
	mustPublish(t, h.bus.Directory(), named(1), f, 1)
	mustFind(t, h.bus.Directory(), named(1))
	if err := errors.Join(h.server.Close(t.Context()), h.bus.Close(t.Context())); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, h.bus.Directory(), f)
}

func wantClosed(t *testing.T, d lane.Directory, f *os.File) {
	t.Helper()
	_, err := d.Find(t.Context(), named(1))
	for _, err := range []error{err, d.Publish(t.Context(), named(2), int(f.Fd()), 1)} {
		if !errors.Is(err, lane.ErrUnavailable) || !errors.Is(err, bus.ErrClosed) {
			t.Errorf("%v, want ErrUnavailable and ErrClosed", err)
		}
	}
	d.Withdraw(named(1))
}

// endsOnceAsked is a context whose first Err is nil, and which has ended for every later call.
type endsOnceAsked struct {
	context.Context
	looked bool
}

func (c *endsOnceAsked) Done() <-chan struct{} {
	done := make(chan struct{})
	close(done)
	return done
}

func (c *endsOnceAsked) Err() error {
	if !c.looked {
		c.looked = true
		return nil
	}
	return context.Canceled
}

func (c *endsOnceAsked) Value(any) any { return nil }

// TestDirectoryWhenHostIsStopped: with a stopped host, questions end with their contexts. A
// descriptor that comes later is closed, and a late publication is withdrawn.
func TestDirectoryWhenHostIsStopped(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	n := h.join(t, node.JoinOptions{})
	d, f := n.Directory(), someFile(t)
	mustPublish(t, d, named(1), f, 1)
	mustFind(t, d, named(1))
	files := testbus.OpenFiles(t)
	stopProcess(t, cmd.Process)
	for range 3 {
		if _, err := d.Find(&endsOnceAsked{Context: t.Context()}, named(1)); !errors.Is(err, context.Canceled) {
			t.Errorf("find at a host that is stopped: %v, want the context's error", err)
		}
		if err := d.Publish(&endsOnceAsked{Context: t.Context()}, named(3), int(f.Fd()), 1); !errors.Is(err, context.Canceled) {
			t.Errorf("publish at a host that is stopped: %v, want the context's error", err)
		}
	}
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	wantNotPublished(t, d, named(3)) // sent after the answers
	if now := testbus.OpenFiles(t); now != files {
		t.Errorf("%d descriptors are open, and %d were", now, files)
	}
	mustPublish(t, d, named(3), f, 7)
	wantSame(t, mustFind(t, h.join(t, node.JoinOptions{}).Directory(), named(3)), f, 7)
}
