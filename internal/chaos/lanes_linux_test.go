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

// TestBadLanes has every bad peer exchange deliveries with an honest node, which
// has a good request in flight as well. The request that needs the bad peer ends
// with an error that names the process and its mistake. Other requests complete, and
// no descriptor is left.
func TestBadLanes(t *testing.T) {
	before := descriptors(t)
	// Some cases wait for seconds, in case the peer is dying. Each has a process; too many
	// at once would exceed the time for hello.
	permits := make(chan struct{}, 16)
	var all sync.WaitGroup
	for name, tc := range badLanes {
		sides := tc.sides
		if sides == nil {
			sides = []string{asStage, asCaller}
		}
		for _, side := range sides {
			all.Go(func() {
				permits <- struct{}{}
				defer func() { <-permits }()
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

// descriptors lists the open descriptors of this process.
func descriptors(t *testing.T) (all []string) {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil { // the descriptor of the directory is closed
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

	ended := make(chan error, 1) // the result of the request that needs the bad peer
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
	if name := fmt.Sprintf("process %d", c.pid()); side != asCaller && said != completed && !strings.Contains(over, name) {
		t.Errorf("the request ended with %q, which does not name %s", over, name)
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
			t.Fatalf("the host has not removed the peer: %+v", h.server.Processes())
		}
	}
	startGoodStream(t, caller).finish()
}

// useBadStage sends inputs to a bad peer: with ends plenty of them and requires as
// many results, otherwise until the request fails.
func useBadStage(r *bus.Request, ends bool) error {
	ctx := context.Background() // the test closes the request
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

// laneHost is a host with two honest nodes.
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

// serve has a node serve the stage.
func (h *laneHost) serve(t *testing.T, n *node.Node) {
	t.Helper()
	go func() { // ends with the node
		_ = n.Serve(context.Background(), bus.StageSpec{Name: laneStage, Handle: func(t *bus.Task, d *bus.Delivery) error {
			return t.EmitBytes(bytes.Clone(d.Bytes()))
		}})
	}()
}

// awaitServing waits until n processes serve the stage. It fails if c ends before.
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

// wideBlock is a larger one, which fills the lane sooner: the honest node detects some faults
// only when the lane is full.
func wideBlock(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, []int{500, 5000}[i%2]) }

// goodStream is a request that does not need the bad peer.
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

// exchange sends inputs, and checks that each is returned.
func (s *goodStream) exchange(n int) {
	s.t.Helper()
	// The limit is for each result: the total depends on how many tests run in parallel.
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

// finish ends the inputs, and requires that no more results come.
func (s *goodStream) finish() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	err := s.r.CloseSend(ctx)
	if err == nil {
		if _, err = s.r.Recv(ctx); errors.Is(err, io.EOF) {
			err = s.r.Wait(ctx)
		} else if err == nil {
			err = errors.New("more results than inputs")
		}
	}
	if err != nil {
		s.t.Fatalf("a good request was harmed: %v", err)
	}
}
