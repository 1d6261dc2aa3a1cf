package chaos

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestBadLanes has every bad peer exchange deliveries with an honest node, that
// has a good request under way besides. The request that needs the bad peer ends
// with an error that says who did what; nobody else is harmed, and nothing is left.
func TestBadLanes(t *testing.T) {
	before := descriptors(t)
	// Some wait for seconds, for a peer that could be dying; and each has a process, of
	// which many at once would find no time to say hello.
	places := make(chan struct{}, 16)
	var all sync.WaitGroup
	for name, tc := range badLanes {
		sides := tc.sides
		if sides == nil {
			sides = []string{asStage, asCaller}
		}
		for _, side := range sides {
			all.Go(func() {
				places <- struct{}{}
				defer func() { <-places }()
				t.Run(name+", "+side, func(t *testing.T) { testBadLane(t, name, side, tc.said) })
			})
		}
	}
	all.Wait()
	for limit := time.Now().Add(patience); ; time.Sleep(pollPause) {
		left := descriptors(t)
		if len(left) <= len(before) {
			return
		}
		if time.Now().After(limit) {
			t.Fatalf("%d descriptors are left, there were %d: %v", len(left), len(before), left)
		}
	}
}

// descriptors are those of this process.
func descriptors(t *testing.T) (all []string) {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // the directory's own is gone
			all = append(all, to)
		}
	}
	return all
}

func testBadLane(t *testing.T, name, side, said string) {
	h := openLaneHost(t)
	lines := make(chan string, 16)
	c, err := start(role{name: name, env: []string{roleEnv + "=bad lane", caseEnv + "=" + name, sideEnv + "=" + side}},
		h.server.Addr(), "", func(line string) { lines <- line })
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.kill(); <-c.done }()
	line := func() string {
		t.Helper()
		select {
		case line := <-lines:
			return line
		case <-c.done:
		case <-time.After(patience):
		}
		t.Fatalf("the peer says nothing: %s\nhost: %s", c.stderr.String(), h.log.String())
		return ""
	}

	ended := make(chan error, 1) // how the request that needs the bad peer does
	if side == asCaller {
		h.serve(t, h.honest)
	} else {
		h.awaitServing(t, 1, c)
		r, err := h.honest.Stream(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		go func() { ended <- useBadStage(r, said == completed) }()
	}
	if got := line(); got != readyLine {
		t.Fatalf("the peer says %q", got)
	}
	caller := h.friend
	if side != asCaller {
		h.serve(t, h.friend)
		h.awaitServing(t, 2, c)
		caller = h.honest
	}
	good := startGoodStream(t, caller)
	good.exchange(20)
	if _, err := c.stdin.(io.Writer).Write([]byte("go\n")); err != nil {
		t.Fatal(err)
	}
	over := line()
	if side != asCaller {
		if err := <-ended; err != nil {
			over = err.Error()
		} else {
			over = completed
		}
	}
	if !strings.Contains(over, said) {
		t.Errorf("the request ended with %q, without %q", over, said)
	}
	if who := fmt.Sprintf("process %d", c.pid()); side != asCaller && said != completed && !strings.Contains(over, who) {
		t.Errorf("the request ended with %q, which does not say %s", over, who)
	}
	good.exchange(20)
	good.finish()
	_ = c.stdin.Close()
	<-c.done
	if c.err != nil {
		t.Errorf("the peer: %v: %s", c.err, c.stderr.String())
	}
	for limit := time.Now().Add(patience); len(h.server.Processes()) > 2; time.Sleep(pollPause) {
		if time.Now().After(limit) {
			t.Fatalf("not forgotten: %+v", h.server.Processes())
		}
	}
	startGoodStream(t, caller).finish()
}

// useBadStage sends a request to a bad peer: for as long as it goes on, or to its
// end.
func useBadStage(r *bus.Request, ends bool) error {
	ctx := context.Background() // it is closed with the test
	go func() {
		for i := 0; !ends || i < plenty; i++ {
			if r.Input(ctx).EmitBytes(wideBlock(i)) != nil {
				return
			}
		}
		_ = r.CloseSend(ctx)
	}()
	results := 0
	for _, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		results++
	}
	if results != plenty {
		return fmt.Errorf("%d results of %d", results, plenty)
	}
	return r.Wait(ctx)
}

// laneHost is a host with an honest node, and a friend of that.
type laneHost struct {
	bus            *bus.Bus
	server         *host.Server
	log            tail
	honest, friend *node.Node
}

func openLaneHost(t *testing.T) *laneHost {
	t.Helper()
	h := &laneHost{}
	opts := bus.Options{
		Name: "lanes", MaxRequests: 4, Logger: slogTo(&h.log), StallTimeout: stallTimeout, OnStall: func([]bus.Stall) {},
		Store: shmstore.Options{ArenaBytes: 2 << 20, Memory: shmstore.Shared},
	}
	var err error
	h.bus, err = bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: laneStage, Remote: &bus.Remote{}, Replicas: 2, Attempts: -1}},
		Edges:  []bus.Edge{{To: laneStage, Window: laneWindow}, {From: laneStage, Window: laneWindow}},
	}, opts)
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd := func(what string, end func(context.Context) error) {
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			if err := end(ctx); err != nil {
				t.Errorf("close %s: %v", what, err)
			}
		})
	}
	closeAtEnd("the bus", h.bus.Close)
	if h.server, err = host.Listen(h.bus, filepath.Join(t.TempDir(), "s"), host.ListenOptions{}); err != nil {
		t.Fatal(err)
	}
	closeAtEnd("the server", func(ctx context.Context) error {
		if vs := h.server.Check(); len(vs) > 0 {
			t.Errorf("arenas: %v", vs)
		}
		return h.server.Close(ctx)
	})
	for name, n := range map[string]**node.Node{"honest": &h.honest, "friend": &h.friend} {
		*n, err = node.Join(t.Context(), name, node.JoinOptions{Socket: h.server.Addr(), Store: shmstore.Options{ArenaBytes: 2 << 20}})
		if err != nil {
			t.Fatal(err)
		}
		closeAtEnd(name, (*n).Close)
	}
	return h
}

// serve has a node do what the stage should.
func (h *laneHost) serve(t *testing.T, n *node.Node) {
	t.Helper()
	go func() { // ends with the node
		_ = n.Serve(context.Background(), bus.StageSpec{Name: laneStage, Handle: func(t *bus.Task, d *bus.Delivery) error {
			return t.EmitBytes(bytes.Clone(d.Bytes()))
		}})
	}()
}

// awaitServing waits until so many serve the stage, of whom a process may be one.
func (h *laneHost) awaitServing(t *testing.T, n int, c *child) {
	t.Helper()
	for ; h.server.Serving(laneStage) < n; time.Sleep(pollPause) {
		if closed(c.done) {
			t.Fatalf("the peer has ended: %v: %s\nhost: %s", c.err, c.stderr.String(), h.log.String())
		}
	}
}

// laneBlock is a payload, in a message or in memory.
func laneBlock(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, []int{16, 5000}[i%2]) }

// wideBlock is likewise, and fills the lane sooner, also where it is in a message: a fault
// that the honest node finds when the lane is full is found after fewer of them.
func wideBlock(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, []int{500, 5000}[i%2]) }

// goodStream is a request that has nothing to do with a bad peer.
type goodStream struct {
	t    *testing.T
	r    *bus.Request
	next int
}

func startGoodStream(t *testing.T, n *node.Node) *goodStream {
	t.Helper()
	r, err := n.Stream(t.Context())
	if err != nil {
		t.Fatalf("a good request was harmed: %v", err)
	}
	t.Cleanup(r.Close)
	s := &goodStream{t: t, r: r}
	s.exchange(1)
	return s
}

// exchange sends inputs, and checks that each comes back.
func (s *goodStream) exchange(n int) {
	s.t.Helper()
	// It is for each result: how long all take depends on how many tests run beside this one.
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	limit := time.AfterFunc(patience, cancel)
	defer limit.Stop()
	for range n {
		limit.Reset(patience)
		if err := s.r.Input(ctx).EmitBytes(laneBlock(s.next)); err != nil {
			s.t.Fatalf("a good request was harmed: input %d: %v", s.next, err)
		}
		d, err := s.r.Recv(ctx)
		if err != nil {
			s.t.Fatalf("a good request was harmed: result %d: %v", s.next, err)
		}
		if !bytes.Equal(d.Bytes(), laneBlock(s.next)) || d.Seq != uint64(s.next) {
			s.t.Fatalf("a good request was harmed: result %d is number %d, %d bytes", s.next, d.Seq, len(d.Bytes()))
		}
		if err := d.Finish(nil); err != nil {
			s.t.Fatal(err)
		}
		s.next++
	}
}

// finish ends the inputs, and requires that nothing more comes.
func (s *goodStream) finish() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	err := s.r.CloseSend(ctx)
	if err == nil {
		if _, err = s.r.Recv(ctx); errors.Is(err, io.EOF) {
			err = s.r.Wait(ctx)
		} else if err == nil {
			err = errors.New("more came than was sent")
		}
	}
	if err != nil {
		s.t.Fatalf("a good request was harmed: %v", err)
	}
}
