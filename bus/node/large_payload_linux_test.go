package node_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// huge exceeds the arena of the stores in these tests, and therefore each window in bytes.
const huge = 6 << 20

// TestLargerThanTheWindow: a payload that exceeds an edge's window in bytes passes alone, in order
// with the others.
func TestLargerThanTheWindow(t *testing.T) {
	forward := bus.StageSpec{Name: "b", Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	b := testbus.Open(t, testbus.Linear(pass("a"), forward), bus.Options{})
	streamBlocks(t, b, 12, 100, huge, 3000, huge+5)
}

// TestPayloadAboveMaxLarge: a payload above MaxLargeBytes fails with an error that names the
// option.
func TestPayloadAboveMaxLarge(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, MaxLargeBytes: 5 << 20}})
	_, err := b.Submit(t.Context(), strings.Repeat("x", huge))
	var at *bus.StageError
	if !errors.As(err, &at) || at.Edge != "->a" || !errors.Is(err, bus.ErrTooLarge) || !strings.Contains(err.Error(), "large_bytes") {
		t.Errorf("%d bytes: %v", huge, err)
	}
}

// TestLargePassesOnlyAlone: a large payload waits for all other payloads of its edge, and none
// passes it meanwhile.
func TestLargePassesOnlyAlone(t *testing.T) {
	handling, goOn := make(chan int, 8), make(chan struct{})
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		handling <- len(d.Bytes())
		<-goOn
		return nil
	}}), bus.Options{})
	r := testbus.StreamOf(t, b)
	send := func(ctx context.Context, n int) error { return r.Input(ctx).EmitBytes(make([]byte, n)) }
	if err := send(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	<-handling
	sent := make(chan error, 1)
	go func() { sent <- send(t.Context(), huge) }()
	for len(b.Stalls(0)) == 0 { // until it waits for credit
		select {
		case err := <-sent:
			t.Fatalf("it passed another: %v", err)
		default:
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := send(gone, 1000); err == nil {
		close(goOn)
		t.Fatal("a small one passed it while it waited")
	}
	goOn <- struct{}{}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if n := <-handling; n != huge {
		t.Errorf("%d bytes came behind the first, want %d", n, huge)
	}
	if err := send(gone, 1000); err == nil {
		t.Error("a small one passed beside it")
	}
	close(goOn)
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Recv(t.Context()); !errors.Is(err, io.EOF) {
		t.Error(err)
	}
}

// TestLargeOnAllEdges: one payload goes along several edges, and a join takes the large parts. A
// forwarded payload counts on the edge that it is forwarded on.
func TestLargeOnAllEdges(t *testing.T) {
	forward := func(name string) bus.StageSpec {
		return bus.StageSpec{Name: name, Handle: func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) }}
	}
	p := testbus.Diamond(forward("s"), pass("l"), forward("r"), bus.Edge{From: "s", To: "r", WindowBytes: 8 << 10})
	p.Stages[3] = bus.StageSpec{Name: "join", Join: func(t *bus.Task, parts []*bus.Delivery) error {
		if !bytes.Equal(parts[0].Bytes(), parts[1].Bytes()) {
			return errors.New("the branches differ")
		}
		return t.Forward(parts[0])
	}}
	streamBlocks(t, testbus.Open(t, p, bus.Options{}), 12, 100, huge, 20<<10, huge)
}

// TestLargeIsDropped: on an edge that drops the oldest, a large payload takes the whole queue, and
// is dropped like any other when the next one comes.
func TestLargeIsDropped(t *testing.T) {
	handling, goOn := make(chan int, 8), make(chan struct{})
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
				for _, n := range []int{100, huge, 200, 300} {
					if err := t.EmitBytes(make([]byte, n)); err != nil {
						return err
					}
					if n == 100 {
						handling <- <-handling // it has left the queue
					}
				}
				close(goOn)
				return nil
			}},
			{Name: "b", Handle: func(_ *bus.Task, d *bus.Delivery) error {
				handling <- len(d.Bytes())
				<-goOn
				return nil
			}},
		},
		Edges: []bus.Edge{{From: "a", To: "b", Policy: bus.DropOldest}},
	}, bus.Options{})
	r, err := b.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	close(handling)
	var got []int
	for n := range handling {
		got = append(got, n)
	}
	if len(got) != 3 || got[0] != 100 || got[1] != 200 || got[2] != 300 {
		t.Errorf("the deliveries have the sizes %v, want 100, 200, 300", got)
	}
	r.Close()
}

// TestLargeIsReplayed: a large input is kept for a replay, and takes the window that bounds the
// kept inputs.
func TestLargeIsReplayed(t *testing.T) {
	for name, c := range map[string]struct {
		sizes []int
		want  error
	}{"alone": {[]int{huge}, nil}, "with another": {[]int{100, huge}, bus.ErrReplayFull}} {
		t.Run(name, func(t *testing.T) {
			tries := 0
			b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Replay: true, Handle: func(task *bus.Task, d *bus.Delivery) error {
				if tries++; len(d.Bytes()) == huge && tries == 1 {
					panic("once")
				}
				return task.EmitBytes(d.Bytes()[:3])
			}}), bus.Options{})
			r := testbus.StreamOf(t, b)
			sent := make(chan error, 1)
			go func() {
				var err error
				for _, n := range c.sizes {
					err = errors.Join(err, r.Input(t.Context()).EmitBytes(make([]byte, n)))
				}
				sent <- err
				_ = r.CloseSend(t.Context())
			}()
			var err error
			for err == nil {
				var d *bus.Delivery
				if d, err = r.Recv(t.Context()); err == nil {
					err = d.Finish(nil)
				}
			}
			if !errors.Is(err, io.EOF) || c.want == nil && tries != 2 {
				t.Errorf("after %d tries: %v", tries, err)
			}
			if err := <-sent; !errors.Is(err, c.want) {
				t.Errorf("sent: %v, want %v", err, c.want)
			}
		})
	}
}

// TestSpareLargeMemoryIsBounded: the store keeps the memory of freed large payloads only up to the
// size of the arena.
func TestSpareLargeMemoryIsBounded(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("a", func(_ *bus.Task, p []byte) ([]byte, error) { return p[:1], nil })), bus.Options{Serializer: codec.RawSerializer{}})
	for range 3 {
		streamOfOne(t, b, huge)
	}
	if err := b.Drain(t.Context()); err != nil { // afterwards the store's writer has handled all messages
		t.Fatal(err)
	}
	if most := int64(4 << 20); b.Stats().Store.LargeBytes > most {
		t.Errorf("%d bytes of freed large payloads are kept, want at most %d", b.Stats().Store.LargeBytes, most)
	}
}

// TestLargePayloadHasOwnSegment: a payload that passes alone has its own segment even if the arena
// has space for it, since it would take the space from the windows of others.
func TestLargePayloadHasOwnSegment(t *testing.T) {
	p := testbus.Linear(bus.StageSpec{Name: "a", Handle: func(_ *bus.Task, d *bus.Delivery) error {
		if apart := len(d.Bytes()) > 8<<10; shmstore.IsLarge(d.Handle) != apart {
			t.Errorf("%d bytes lie in a segment of their own: %v", len(d.Bytes()), !apart)
		}
		return nil
	}})
	p.Edges = append(p.Edges, bus.Edge{To: "a", WindowBytes: 9 << 10})
	b := testbus.Open(t, p, bus.Options{})
	for _, n := range []int{8 << 10, 100 << 10} {
		streamOfOne(t, b, n)
	}
}

func streamOfOne(t *testing.T, b *bus.Bus, n int) {
	t.Helper()
	r, err := b.Submit(t.Context(), make([]byte, n))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		d, err := r.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
}
