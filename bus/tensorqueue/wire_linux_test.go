package tensorqueue_test

import (
	"context"
	"errors"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// client talks to the owner of a queue as the package's documentation describes.
type client struct {
	t *testing.T
	n *node.Node
}

func newClient(t *testing.T, opts tensorqueue.Options) *client {
	t.Helper()
	n, err := node.Join(t.Context(), "client", node.JoinOptions{Socket: opts.Socket, MaxRequests: 200})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &client{t, n}
}

// put submits a request whose only input is a bundle.
func (c *client) put(payload []byte) *bus.Request {
	c.t.Helper()
	return c.begin(payload, bus.Last())
}

// begin submits a request whose first input is a bundle.
func (c *client) begin(payload []byte, opts ...bus.EmitOption) *bus.Request {
	c.t.Helper()
	r, err := c.n.Stream(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(r.Close)
	buf, err := r.Input(c.t.Context()).Reserve(len(payload), codec.IDBundle, opts...)
	if err == nil {
		copy(buf.Bytes(), payload)
		err = buf.Send(len(payload))
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

// want checks the owner's answer.
func (c *client) want(r *bus.Request, want string) {
	c.t.Helper()
	d, err := r.Recv(c.t.Context())
	if err != nil {
		c.t.Fatalf("the owner's word: %v, want %q", err, want)
	}
	var word string
	if err := errors.Join(d.Decode(&word), d.Finish(nil)); err != nil || word != want {
		c.t.Fatalf("the owner says %q, %v; want %q", word, err, want)
	}
}

// othersThan waits until the owner answers one of the requests with want, and returns the other
// requests.
func (c *client) othersThan(requests []*bus.Request, want string) []*bus.Request {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	heard := make([]*bus.Delivery, len(requests))
	var all sync.WaitGroup
	for i, r := range requests {
		all.Go(func() {
			if d, err := r.Recv(ctx); err == nil {
				heard[i] = d
				cancel()
			}
		})
	}
	all.Wait()
	var silent []*bus.Request
	for i, d := range heard {
		if d == nil {
			silent = append(silent, requests[i])
			continue
		}
		var word string
		if err := errors.Join(d.Decode(&word), d.Finish(nil)); err != nil || word != want {
			c.t.Fatalf("the owner says %q, %v; want %q", word, err, want)
		}
	}
	if len(silent) != len(requests)-1 {
		c.t.Fatalf("%d of %d requests were answered, want one", len(requests)-len(silent), len(requests))
	}
	return silent
}

// encoded encodes a bundle. With a place, its first tensor lies there.
func encoded(t *testing.T, v any, places ...bundle.Place) []byte {
	t.Helper()
	p, err := bundle.NewPlan(v)
	if err != nil {
		t.Fatal(err)
	}
	p.Places, p.MinBytes = places, 1000
	if len(places) > 0 {
		p.Tensors[0].Place = 1
	}
	size, err := p.Size()
	if err != nil {
		t.Fatal(err)
	}
	payload := make([]byte, size)
	if err := p.EncodeInto(payload); err != nil {
		t.Fatal(err)
	}
	return payload
}

func itemOf(rid string, inputs any) map[string]any {
	return map[string]any{"rid": rid, "shm_name": "", "inputs": inputs}
}

// TestBackIsAnswered: the owner answers "back" with what became of each put.
func TestBackIsAnswered(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 1})
	c := newClient(t, opts)
	in := c.begin(encoded(t, itemOf("in", nil)))
	c.want(in, "queued") // before the next: two requests may arrive in any order
	waits := c.begin(encoded(t, itemOf("waits", nil)))
	for _, r := range []*bus.Request{in, waits} {
		if err := r.Send(t.Context(), "back", bus.Last()); err != nil {
			t.Fatal(err)
		}
	}
	c.want(waits, "full")
	if err := waits.Wait(t.Context()); err != nil {
		t.Errorf("the request of the put that waited: %v", err)
	}
	wantItem(t, q, "in", 0)                            // it stays in the queue
	if d, err := in.Recv(t.Context()); err != io.EOF { // there is no second word
		t.Errorf("the first put gets a second word: %+v, %v", d, err)
	}
	if n := size(t, q); n != 0 {
		t.Errorf("%d items are left", n)
	}
}

// TestTooManyPuts: one Put more than may wait fails with ErrBusy.
func TestTooManyPuts(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 1})
	c := newClient(t, opts)
	payload := encoded(t, itemOf("many", nil))
	first := c.put(payload)
	c.want(first, "queued")
	waiting := make([]*bus.Request, tensorqueue.MaxWaiting+1)
	for i := range waiting {
		waiting[i] = c.put(payload)
	}
	waiting = c.othersThan(waiting, "busy") // one of them, whichever arrived last
	if err := q.Put(t.Context(), "one more", "", nil, tensorqueue.PutOptions{}); !errors.Is(err, tensorqueue.ErrBusy) {
		t.Errorf("one more put: %v, want ErrBusy", err)
	}
	for _, r := range waiting {
		r.Close() // which withdraws it
	}
	wantItem(t, q, "many", 0)
	for done := false; !done; {
		err := q.Put(t.Context(), "again", "", nil, tensorqueue.PutOptions{})
		if done = err == nil; !done && !errors.Is(err, tensorqueue.ErrBusy) {
			t.Fatal(err)
		}
	}
	for it := get(t, q); ; it = get(t, q) { // items that were admitted before they were withdrawn come first
		closeItem(t, it)
		if it.RID == "again" {
			return
		}
	}
}

// TestTooManyGets: one Get more than may wait or have an item fails with ErrBusy.
func TestTooManyGets(t *testing.T) {
	eachPair(t, tensorqueue.Options{}, func(t *testing.T, from, to *tensorqueue.Queue) {
		taken := make([]*tensorqueue.Item, tensorqueue.MaxTaken)
		for i := range taken {
			put(t, from, "many")
			taken[i] = get(t, to)
		}
		for _, q := range []*tensorqueue.Queue{from, to} {
			if _, err := q.Get(t.Context()); !errors.Is(err, tensorqueue.ErrBusy) {
				t.Errorf("one more get: %v, want ErrBusy", err)
			}
		}
		put(t, from, "one more")
		closeItem(t, taken[0])
		for {
			it, err := from.Get(t.Context())
			if errors.Is(err, tensorqueue.ErrBusy) {
				continue // the owner has not received the close yet
			}
			if err != nil || it.RID != "one more" {
				t.Errorf("got %+v, %v", it, err)
			}
			closeItem(t, it)
			break
		}
		for _, it := range taken {
			closeItem(t, it)
		}
	})
}

// TestInvalidItems: each invalid item is an error for one getter, and is then removed.
func TestInvalidItems(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{})
	c := newClient(t, opts)
	for name, payload := range map[string][]byte{
		"garbage":    []byte(strings.Repeat("garbage", 10)),
		"no map":     encoded(t, "text"),
		"no name":    encoded(t, map[string]any{"rid": "r", "inputs": nil}),
		"no id":      encoded(t, map[string]any{"rid": 7, "shm_name": "", "inputs": nil}),
		"bad inputs": encoded(t, itemOf("r", []any{"text"})),
	} {
		t.Run(name, func(t *testing.T) {
			r := c.put(payload)
			c.want(r, "queued")
			put(t, q, "good")
			if it, err := q.Get(t.Context()); !errors.Is(err, tensorqueue.ErrItem) {
				t.Errorf("got %+v, %v; want ErrItem", it, err)
			}
			wantItem(t, q, "good", 0)
			if err := r.Wait(t.Context()); err != nil {
				t.Errorf("the request that put it: %v", err)
			}
		})
	}
	r, err := c.n.Submit(t.Context(), "neither")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), tensorqueue.ErrItem.Error()) {
		t.Errorf("an input that is neither a bundle nor a word: %v, want ErrItem", err)
	}
}

// TestItemThatCannotBeOpenedStays: an item that one process cannot open, for lack of a GPU, stays for
// others.
func TestItemThatCannotBeOpenedStays(t *testing.T) {
	g, q, opts := openGPU(t, tensorqueue.Options{Transport: bus.TensorsPool})
	if err := g.put(t.Context(), q, 7); err != nil {
		t.Fatal(err)
	}
	without := join(t, tensorqueue.Options{Socket: opts.Socket})
	if it, err := without.Get(t.Context()); !errors.Is(err, lane.ErrNoLane) || errors.Is(err, tensorqueue.ErrItem) {
		t.Errorf("got %+v, %v without a GPU; want ErrNoLane", it, err)
	}
	it, err := g.get(t.Context(), q, true)
	if err != nil || it.RID != "7" || it.Attempt != 0 {
		t.Fatalf("got %+v, %v", it, err)
	}
	closeItem(t, it)
}

// TestItemsOfDeadProducerAreSkipped: a getter skips an item whose memory is gone with its producer, and
// gets the next one.
func TestItemsOfDeadProducerAreSkipped(t *testing.T) {
	g, q, opts := openGPU(t, tensorqueue.Options{})
	c := newClient(t, opts)
	tensor := &lane.Tensor{DType: codec.DTypeUint8, Shape: []int{100}}
	gone := bundle.Place{Kind: bundle.PlacePool, Device: g.dev.Caps().Device, Pool: [16]byte{7}, Generation: 1, Arena: 1, Bytes: 4096}
	r := c.put(encoded(t, itemOf("gone", map[string]any{"x": tensor}), gone))
	c.want(r, "queued")
	put(t, q, "good")
	wantItem(t, q, "good", 0)
	if err := r.Wait(t.Context()); err != nil {
		t.Errorf("the request that put the lost item: %v", err)
	}
}

// TestWrongWordFromOwner: the answer to a put is no answer to a get.
func TestWrongWordFromOwner(t *testing.T) {
	opts := tensorqueue.Options{Name: "none", Socket: filepath.Join(t.TempDir(), "none.sock")}
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: opts.Name, Handle: func(t *bus.Task, _ *bus.Delivery) error {
			return t.Emit("queued")
		}}},
		Edges: []bus.Edge{{To: opts.Name}, {From: opts.Name}},
	}, bus.Options{Name: opts.Name})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close(context.Background()) })
	s, err := host.Listen(b, opts.Socket, host.ListenOptions{Methods: map[string]func(context.Context, []byte) (any, error){
		"size": func(context.Context, []byte) (any, error) { return map[string]int{"max_size": 1}, nil },
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close(context.Background()) })
	q, err := tensorqueue.Join(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = q.Close(context.Background()) })
	if it, err := q.Get(t.Context()); err == nil || !strings.Contains(err.Error(), `"queued"`) {
		t.Fatalf("got %v, %v; want the owner's word", it, err)
	}
}
