package node_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// block is a payload that contains its number and can be checked.
func block(i, size int) []byte {
	b := bytes.Repeat([]byte{byte(i)}, max(size, 8))
	binary.LittleEndian.PutUint64(b, uint64(i))
	return b
}

// pass is a stage that emits a copy of each input.
func pass(name string) bus.StageSpec {
	return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error {
		return t.EmitBytes(bytes.Clone(d.Bytes()))
	}}
}

// streamBlocks sends n payloads of the given sizes through a request and checks the results.
func streamBlocks(t *testing.T, s testbus.Submitter, n int, sizes ...int) {
	t.Helper()
	r := testbus.StreamOf(t, s)
	go func() {
		for i := range n {
			if err := r.Input(t.Context()).EmitBytes(block(i, sizes[i%len(sizes)])); err != nil {
				t.Errorf("send %d: %v", i, err)
				return
			}
		}
		if err := r.CloseSend(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for i := range n {
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatalf("result %d: %v", i, err)
		}
		if want := block(i, sizes[i%len(sizes)]); !bytes.Equal(d.Bytes(), want) || d.PayloadCodec() != codec.IDRaw {
			t.Fatalf("result %d has %d bytes that begin with %v, want %d", i, len(d.Bytes()), d.Bytes()[:8], len(want))
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Recv(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatalf("behind the last result: %v", err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// wantDirect requires n deliveries on each edge, some of them on a direct path.
func wantDirect(t *testing.T, b *bus.Bus, n int) {
	t.Helper()
	for _, e := range b.Stats().Edges {
		if e.Deliveries != int64(n) || e.Direct == 0 {
			t.Errorf("edge %s->%s: %d deliveries, %d of them direct, want %d", e.From, e.To, e.Deliveries, e.Direct, n)
		}
	}
}

// TestStreamsGoDirect: only the beginning of a long stream goes through the host.
func TestStreamsGoDirect(t *testing.T) {
	h := serveAll(t, testbus.Linear(pass("a"), pass("b")), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	const deliveries = 2000
	streamBlocks(t, n, deliveries, 8, 100, 700, 5000, 40_000)
	wantDirect(t, h.bus, deliveries)
}

// TestStagesOfOneNode: two stages of one process exchange deliveries on a direct path, too.
func TestStagesOfOneNode(t *testing.T) {
	p := testbus.Linear(pass("a"), pass("b"))
	h := listen(t, testbus.Remotes(p), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	go func() { _ = n.Serve(context.Background(), p.Stages...) }()
	const deliveries = 1000
	streamBlocks(t, n, deliveries, 8, 5000)
	wantDirect(t, h.bus, deliveries)
}

// TestProcessesCountDirectStreams: the host reports for each process how many of its streams take a
// direct path.
func TestProcessesCountDirectStreams(t *testing.T) {
	h := serveAll(t, testbus.Linear(pass("a")), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	r := testbus.StreamOf(t, n)
	for i := range 2 {
		if err := r.Input(t.Context()).EmitBytes(block(i, 8)); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	direct := func() (streams []int) {
		for _, p := range h.server.Processes() {
			streams = append(streams, p.Direct)
		}
		return streams
	}
	if got := direct(); !slices.Equal(got, []int{2, 2}) { // each has inputs and results
		t.Errorf("streams past the host, by process: %v", got)
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return slices.Equal(direct(), []int{0, 0}) })
}

// TestManyStreams: many requests run at the same time, each with its own streams.
func TestManyStreams(t *testing.T) {
	h := serveAll(t, testbus.Linear(pass("a"), pass("b"), pass("c")), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	done := make(chan struct{})
	const requests = 20
	for range requests {
		go func() {
			defer func() { done <- struct{}{} }()
			t.Run("stream", func(t *testing.T) { streamBlocks(t, n, 200, 8, 5000) })
		}()
	}
	for range requests {
		<-done
	}
}

// forwarding is a stage that forwards each input by reference.
func forwarding(name string) bus.StageSpec {
	return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
}

// locations records where the stages find their payloads.
type locations struct {
	mu sync.Mutex
	by map[string]map[uint64]node.Location // by stage and sequence
}

func (p *locations) record(t *testing.T, where string, d *bus.Delivery) {
	at := node.LocationOf(t, d)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.by == nil {
		p.by = make(map[string]map[uint64]node.Location)
	}
	if p.by[where] == nil {
		p.by[where] = make(map[uint64]node.Location)
	}
	p.by[where][d.Seq] = at
}

// same requires that the payloads lay at the same location in both stages.
func (p *locations) same(t *testing.T, a, b string, n int) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	for seq := range uint64(n) {
		if p.by[a][seq] != p.by[b][seq] || p.by[a][seq].File == 0 {
			t.Fatalf("payload %d lay at %+v for %s and at %+v for %s", seq, p.by[a][seq], a, p.by[b][seq], b)
		}
	}
}

// TestForwardOnDirectPathCopies: a payload that came on a direct path is copied where a stage
// forwards it, once for all receivers.
func TestForwardOnDirectPathCopies(t *testing.T) {
	var at locations
	forwarding := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(task *bus.Task, d *bus.Delivery) error {
			at.record(t, name, d)
			return task.Forward(d)
		}}
	}
	p := bus.Pipeline{
		Stages: []bus.StageSpec{forwarding("a"), forwarding("b"), forwarding("c")},
		Edges:  []bus.Edge{{From: "a", To: "b"}, {From: "a", To: "c"}},
	}
	h := serveAll(t, p, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	const deliveries, size = 500, 5000
	r := testbus.StreamOf(t, n)
	go func() {
		for i := range deliveries {
			if err := r.Input(t.Context()).EmitBytes(block(i, size)); err != nil {
				t.Errorf("send %d: %v", i, err)
				return
			}
		}
		if err := r.CloseSend(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for d, err := range r.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if want := block(int(d.Seq), size); !bytes.Equal(d.Bytes(), want) {
			t.Fatalf("result %d on %s begins with %v", d.Seq, d.Edge, d.Bytes()[:8])
		}
		at.record(t, d.Edge, d)
	}
	wantDirect(t, h.bus, deliveries)
	// The first went through the host, by reference.
	const begin = 100
	for _, m := range at.by {
		for seq := range uint64(begin) {
			m[seq] = node.Location{File: 1}
		}
	}
	at.same(t, "b", "c", deliveries)
	for _, two := range [][2]string{{"a", "b"}, {"b", "b->"}, {"c", "c->"}} {
		for seq := uint64(begin); seq < deliveries; seq++ {
			if at.by[two[0]][seq].File == at.by[two[1]][seq].File {
				t.Fatalf("payload %d lay in one memory, at %+v for %s and at %+v for %s", seq, at.by[two[0]][seq], two[0], at.by[two[1]][seq], two[1])
			}
		}
	}
}

// TestDirectHoldingsAreReported: the host reports the holders of deliveries that it does not relay.
func TestDirectHoldingsAreReported(t *testing.T) {
	const window = 4
	release := make(chan struct{})
	p := testbus.Linear(pass("a"), bus.StageSpec{Name: "b", Handle: func(t *bus.Task, d *bus.Delivery) error {
		if d.Seq >= 8 { // the stream is direct by then
			select {
			case <-release:
			case <-t.Context().Done():
			}
		}
		return t.EmitBytes(d.Bytes())
	}})
	p.Edges[0].Window = window
	h := serveAll(t, p, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	done := make(chan struct{})
	go func() { defer close(done); streamBlocks(t, n, 50, 8, 5000) }()

	var held []host.Holding
	testbus.Await(t, func() bool { // earlier deliveries may be in handlers, and may seem younger, since two processes measure the ages
		held = slices.DeleteFunc(h.server.Holdings(), func(h host.Holding) bool { return h.Edge != "a->b" || h.Seq < 8 })
		return len(held) >= window
	})
	if held[0].PID != os.Getpid() || held[0].Stage != "b" || held[0].Request != node.RequestIDOf(n, 1) {
		t.Errorf("held are %+v", held)
	}
	var stalls []bus.Stall
	i := -1
	testbus.Await(t, func() bool { // the next emission has not found the window full yet
		stalls = stallsOf(t, n)
		i = slices.IndexFunc(stalls, func(s bus.Stall) bool { return s.Edge == "a->b" })
		return i >= 0
	})
	if stalls[i].Deliveries != window || !strings.Contains(stalls[i].String(), fmt.Sprint("process ", os.Getpid())) {
		t.Errorf("stalls are %v, without the holders", stalls)
	}
	status := h.server.Status()
	i = slices.IndexFunc(status.Requests[0].Edges, func(e bus.EdgeStatus) bool { return e.Edge == "a->b" && e.Direct })
	if i < 0 || status.Requests[0].Edges[i].Deliveries != window {
		t.Errorf("the request has under way %+v", status.Requests[0].Edges)
	}
	close(release)
	<-done
	testbus.Await(t, func() bool { // the last report says that nothing is held
		return !slices.ContainsFunc(h.server.Holdings(), func(h host.Holding) bool { return h.Direct })
	})
}

// TestDirectLanesAreReported: the status counts the direct deliveries between each two processes. A
// count never shrinks, and each delivery counts once on its edge, however the request ends.
func TestDirectLanesAreReported(t *testing.T) {
	h := serveAll(t, testbus.Linear(pass("a")), bus.Options{})
	n := h.join(t, node.JoinOptions{})
	var before []host.LaneStatus
	var edges []bus.EdgeStats
	look := func() []host.LaneStatus {
		st := h.server.Status()
		for i, l := range before {
			if j := slices.IndexFunc(st.Lanes, func(o host.LaneStatus) bool { return o.From == l.From && o.To == l.To }); j < 0 ||
				st.Lanes[j].Deliveries < l.Deliveries || st.Lanes[j].Bytes < l.Bytes {
				t.Fatalf("lane %d was %+v, and now they are %+v", i, l, st.Lanes)
			}
		}
		for i, e := range edges {
			if now := st.Stats.Edges[i]; now.Direct < e.Direct || now.Deliveries < e.Deliveries || now.Bytes < e.Bytes {
				t.Fatalf("an edge was %+v, and is %+v", e, now)
			}
		}
		before, edges = st.Lanes, st.Stats.Edges
		return st.Lanes
	}
	const size = 1000
	sent := int64(0) // on each of the two edges
	counted := func() bool {
		look()
		for _, e := range edges {
			if e.Deliveries > sent || e.Bytes > sent*size {
				t.Fatalf("%d deliveries of %d bytes are %+v", sent, size, e)
			}
			if e.Deliveries < sent || e.Bytes < sent*size {
				return false
			}
		}
		return true
	}
	send := func(r *bus.Request, deliveries int) {
		for i := range deliveries {
			sent++
			if err := r.Input(t.Context()).EmitBytes(block(i, size)); err != nil {
				t.Fatal(err)
			}
			d, err := r.Recv(t.Context())
			if err == nil {
				err = d.Finish(nil)
			}
			if err != nil {
				t.Fatal(err)
			}
			look()
		}
	}
	const deliveries = 10
	r := testbus.StreamOf(t, n)
	var lanes []host.LaneStatus
	few := func(l host.LaneStatus) bool { return l.Deliveries < deliveries }
	for range 100_000 { // the first go through the host, until it has introduced the two
		send(r, 1)
		if lanes = look(); len(lanes) == 2 && !slices.ContainsFunc(lanes, few) {
			break
		}
	}
	if len(lanes) != 2 || lanes[0].From != lanes[1].To || lanes[0].To != lanes[1].From {
		t.Fatalf("lanes are %+v", lanes)
	}
	for _, l := range lanes {
		if l.Streams != 1 || few(l) || l.Bytes != l.Deliveries*size {
			t.Errorf("a lane of a request that is under way: %+v", l)
		}
	}
	testbus.Await(t, counted)
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(h.server.Status().Requests) == 0 })
	if !counted() {
		t.Errorf("%d deliveries of a request that is complete are %+v", sent, edges)
	}

	r = testbus.StreamOf(t, n)
	send(r, deliveries)
	testbus.Await(t, counted)
	r.Abort(nil)
	testbus.Await(t, func() bool { return len(h.server.Status().Requests) == 0 })
	if !counted() {
		t.Errorf("%d deliveries, of a request that was aborted too, are %+v", sent, edges)
	}
	for _, l := range look() {
		if l.Streams != 0 || l.InFlight != 0 || l.Deliveries < deliveries {
			t.Errorf("a lane without a request: %+v", l)
		}
	}
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(h.server.Status().Lanes) == 0 })
}

// TestConsumerDeathFailsDirectRequest: the death of a process that holds direct deliveries fails
// the request, with and without state.
func TestConsumerDeathFailsDirectRequest(t *testing.T) {
	for _, state := range []bus.State{bus.StateNone, bus.StateRequest} {
		t.Run(state.String(), func(t *testing.T) {
			h := mortalHost(t, bus.StageSpec{State: state, Attempts: -1, Replicas: 2})
			h.child(t, "m")
			h.child(t, "m")
			testbus.Await(t, func() bool { return h.server.Serving("m") == 2 })
			r := testbus.StreamOf(t, h.join(t, node.JoinOptions{}))
			go func() { // fails when the request has
				for i := range 200 {
					in := "x"
					if i == 150 {
						in = "kill"
					}
					_ = r.Send(t.Context(), large(in))
				}
				_ = r.CloseSend(t.Context())
			}()
			results := 0
			var err error
			for err == nil {
				var d *bus.Delivery
				if d, err = r.Recv(t.Context()); err == nil {
					results++
					err = d.Finish(nil)
				}
			}
			if !errors.Is(err, io.EOF) && r.Outcome() == bus.Failed {
				return
			}
			t.Fatalf("the request ended with %v, %v, after %d results", r.Outcome(), err, results)
		})
	}
}

// TestResultsThatAreInputs: a caller that holds results which are its own inputs, forwarded by
// reference, still gets the end of the results, on the path through the host and on the direct
// path.
func TestResultsThatAreInputs(t *testing.T) {
	for _, inputs := range []int{1, 20} {
		h := serveAll(t, testbus.Linear(forwarding("f")), bus.Options{})
		n := h.join(t, node.JoinOptions{})
		r := testbus.StreamOf(t, n)
		for i := range inputs {
			if err := r.Input(t.Context()).EmitBytes(block(i, 2000)); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.CloseSend(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all []*bus.Delivery
		for len(all) < inputs {
			d, err := r.Recv(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, d)
		}
		patience, cancel := context.WithTimeout(t.Context(), 10*time.Second) // otherwise the caller would wait for itself
		if _, err := r.Recv(patience); !errors.Is(err, io.EOF) {
			t.Errorf("behind the last result: %v", err)
		}
		cancel()
		for i, d := range all {
			if !bytes.Equal(d.Bytes(), block(i, 2000)) {
				t.Errorf("result %d was overwritten", i)
			}
			if err := d.Finish(nil); err != nil {
				t.Fatal(err)
			}
		}
	}
}
