package tensorqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
)

// open opens a queue. It is closed when the test ends, and no goroutine may be left.
func open(t *testing.T, opts tensorqueue.Options) (*tensorqueue.Queue, tensorqueue.Options) {
	t.Helper()
	ignored := goleak.IgnoreCurrent()
	opts.Socket = filepath.Join(t.TempDir(), "q.sock")
	q, err := tensorqueue.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		closeQueue(t, q)
		goleak.VerifyNone(t, ignored)
	})
	return q, opts
}

func join(t *testing.T, opts tensorqueue.Options) *tensorqueue.Queue {
	t.Helper()
	q, err := tensorqueue.Join(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { closeQueue(t, q) })
	return q
}

// closeLimit bounds a Close, whose error says what it waits for.
const closeLimit = 10 * time.Second

func closeQueue(t *testing.T, q *tensorqueue.Queue) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	if err := q.Close(ctx); err != nil {
		t.Errorf("close: %v", err)
	}
}

// eachPair runs f for an owner and a process that joined, in both directions, for two that joined, and
// for the owner alone.
func eachPair(t *testing.T, opts tensorqueue.Options, f func(t *testing.T, from, to *tensorqueue.Queue)) {
	t.Run("owner to joined", func(t *testing.T) {
		owner, opts := open(t, opts)
		f(t, owner, join(t, opts))
	})
	t.Run("joined to owner", func(t *testing.T) {
		owner, opts := open(t, opts)
		f(t, join(t, opts), owner)
	})
	t.Run("joined to joined", func(t *testing.T) {
		_, opts := open(t, opts)
		f(t, join(t, opts), join(t, opts))
	})
	t.Run("owner alone", func(t *testing.T) {
		owner, _ := open(t, opts)
		f(t, owner, owner)
	})
}

func put(t *testing.T, q *tensorqueue.Queue, rid string) {
	t.Helper()
	if err := q.Put(t.Context(), rid, "", nil, tensorqueue.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

// puts puts n items on another goroutine, with ids from "0". The returned function waits for the last.
func puts(t *testing.T, q *tensorqueue.Queue, n int) (wait func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range n {
			if err := q.Put(t.Context(), fmt.Sprint(i), "", nil, tensorqueue.PutOptions{}); err != nil {
				t.Error(err)
			}
		}
	})
	return wg.Wait
}

func get(t *testing.T, q *tensorqueue.Queue) *tensorqueue.Item {
	t.Helper()
	it, err := q.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return it
}

func closeItem(t *testing.T, it *tensorqueue.Item) {
	t.Helper()
	if err := it.Close(); err != nil {
		t.Error(err)
	}
}

func wantItem(t *testing.T, q *tensorqueue.Queue, rid string, attempt int) {
	t.Helper()
	it := get(t, q)
	if it.RID != rid || it.Attempt != attempt {
		t.Errorf("got %q, attempt %d, want %q, %d", it.RID, it.Attempt, rid, attempt)
	}
	closeItem(t, it)
}

func size(t *testing.T, q *tensorqueue.Queue) int {
	t.Helper()
	n, err := q.Size(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	empty, err := q.Empty(t.Context())
	if err != nil || empty != (n == 0) {
		t.Errorf("empty is %v, %v, with %d items", empty, err, n)
	}
	return n
}

// awaitEmpty returns when the queue is empty.
func awaitEmpty(t *testing.T, q *tensorqueue.Queue) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		empty, err := q.Empty(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if empty {
			return
		}
		runtime.Gosched()
	}
}

// ended returns a context that has ended.
func ended() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}

func TestItemsArriveAsTheyWerePut(t *testing.T) {
	eachPair(t, tensorqueue.Options{}, func(t *testing.T, from, to *tensorqueue.Queue) {
		pixels := make([]byte, 100<<10)
		for i := range pixels {
			pixels[i] = byte(i * 7)
		}
		inputs := map[string]any{
			"image": []any{map[string]any{"pixels": codec.Tensor{DType: codec.DTypeUint8, Shape: []int{100, 1 << 10}, Data: pixels}}},
			"grid":  []any{int64(1), int64(2)},
		}
		var released sync.WaitGroup
		released.Add(1)
		if err := from.Put(t.Context(), "r1", "segment", inputs, tensorqueue.PutOptions{Release: released.Done}); err != nil {
			t.Fatal(err)
		}
		released.Wait()
		put(t, from, "r2")
		if n := size(t, to); n != 2 {
			t.Errorf("%d items, want 2", n)
		}
		it := get(t, to)
		image := it.Inputs()["image"].([]any)[0].(map[string]any)["pixels"].(codec.Tensor)
		if it.RID != "r1" || it.ShmName != "segment" || !slices.Equal(image.Data, pixels) {
			t.Errorf("got %q, %q, with other bytes: %v", it.RID, it.ShmName, !slices.Equal(image.Data, pixels))
		}
		second := get(t, to) // while the first is held
		if second.RID != "r2" || second.Inputs() != nil || second.Message().OnDevice() {
			t.Errorf("got %q, %v", second.RID, second.Inputs())
		}
		closeItem(t, second)
		closeItem(t, it)
		closeItem(t, it) // a second time
		if n := size(t, from); n != 0 {
			t.Errorf("%d items, want none", n)
		}
		if err := from.Drain(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestGetsFollowPutOrder(t *testing.T) {
	eachPair(t, tensorqueue.Options{MaxSize: 4}, func(t *testing.T, from, to *tensorqueue.Queue) {
		const n = 100
		defer puts(t, from, n)()
		for i := range n {
			wantItem(t, to, fmt.Sprint(i), 0)
		}
	})
}

func TestFullQueueMakesPutsWait(t *testing.T) {
	eachPair(t, tensorqueue.Options{MaxSize: 2}, func(t *testing.T, from, to *tensorqueue.Queue) {
		put(t, from, "a")
		put(t, from, "b")
		var full *tensorqueue.FullError
		var err error
		for limit := 20 * time.Millisecond; full == nil; limit *= 2 { // the context may end before the owner has received the put
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			err = from.Put(ctx, "too many", "", nil, tensorqueue.PutOptions{})
			cancel()
			if !errors.As(err, &full) && (!errors.Is(err, context.DeadlineExceeded) || limit > time.Minute) {
				break
			}
		}
		if full == nil || full.MaxSize != 2 || from.MaxSize() != 2 || !errors.Is(err, tensorqueue.ErrFull) || !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("a third put: %v", err)
		}
		waiting := make(chan error, 1)
		go func() { waiting <- from.Put(t.Context(), "c", "", nil, tensorqueue.PutOptions{}) }()
		held := get(t, to) // makes space, though it is not closed
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		wantItem(t, to, "b", 0)
		wantItem(t, to, "c", 0)
		if held.RID != "a" {
			t.Errorf("got %q first", held.RID)
		}
		closeItem(t, held)
	})
}

func TestGetWaitsUntilItsContextEnds(t *testing.T) {
	eachPair(t, tensorqueue.Options{}, func(t *testing.T, from, to *tensorqueue.Queue) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if _, err := to.Get(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("get from an empty queue: %v", err)
		}
		if _, err := to.Get(ended()); !errors.Is(err, context.Canceled) {
			t.Errorf("get with a context that is over: %v", err)
		}
		got := make(chan *tensorqueue.Item)
		go func() {
			it, err := to.Get(t.Context())
			if err != nil {
				t.Error(err)
			}
			got <- it
		}()
		put(t, from, "late")
		closeItem(t, <-got)
	})
}

// TestGetsThatTimeOutLoseNothing: each item is got, however the end of a Get and the arrival of an item
// interleave.
func TestGetsThatTimeOutLoseNothing(t *testing.T) {
	eachPair(t, tensorqueue.Options{}, func(t *testing.T, from, to *tensorqueue.Queue) {
		const n = 60
		defer puts(t, from, n)()
		for i, pause := 0, time.Microsecond; i < n; pause = (pause*5/4)%(2*time.Millisecond) + time.Microsecond {
			ctx, cancel := context.WithTimeout(t.Context(), pause)
			it, err := to.Get(ctx)
			cancel()
			if err != nil {
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				continue
			}
			if it.RID != fmt.Sprint(i) {
				t.Fatalf("got %q, want %d", it.RID, i)
			}
			closeItem(t, it)
			i++
		}
	})
}

// TestPutsThatTimeOutPutNothing: the items that are got are those whose Put succeeded, however the end
// of a Put and a Get interleave.
func TestPutsThatTimeOutPutNothing(t *testing.T) {
	eachPair(t, tensorqueue.Options{}, func(t *testing.T, from, to *tensorqueue.Queue) {
		var put []string
		var putting sync.WaitGroup
		putting.Go(func() {
			for i, pause := 0, time.Microsecond; i < 300; i, pause = i+1, (pause*5/4)%(2*time.Millisecond)+time.Microsecond {
				ctx, cancel := context.WithTimeout(t.Context(), pause)
				err := from.Put(ctx, fmt.Sprint(i), "", nil, tensorqueue.PutOptions{})
				cancel()
				if err == nil {
					put = append(put, fmt.Sprint(i))
				} else if !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			}
			if err := from.Put(t.Context(), "last", "", nil, tensorqueue.PutOptions{}); err != nil {
				t.Error(err)
			}
		})
		var got []string
		for {
			it := get(t, to)
			closeItem(t, it)
			if it.RID == "last" {
				break
			}
			got = append(got, it.RID)
		}
		putting.Wait()
		if diff := cmp.Diff(put, got); diff != "" {
			t.Errorf("items put and items got differ (-put +got):\n%s", diff)
		}
	})
}

func TestCloseEndsEverything(t *testing.T) {
	owner, opts := open(t, tensorqueue.Options{MaxSize: 1})
	joined := join(t, opts)
	waiting := make(chan error)
	for _, q := range []*tensorqueue.Queue{owner, joined} {
		go func() {
			_, err := q.Get(t.Context())
			waiting <- err
		}()
	}
	wantClosed := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, tensorqueue.ErrClosed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	closeQueue(t, owner)
	for range 2 {
		wantClosed("a get that waited", <-waiting)
	}
	for _, q := range []*tensorqueue.Queue{owner, joined} {
		released := make(chan struct{})
		wantClosed("put", q.Put(t.Context(), "x", "", nil, tensorqueue.PutOptions{Release: func() { close(released) }}))
		<-released
		_, err := q.Get(t.Context())
		wantClosed("get", err)
		_, err = q.Size(t.Context())
		wantClosed("size", err)
	}
}

// TestCloseOfAFullQueue: waiting Puts end, and the items in the queue are dropped.
func TestCloseOfAFullQueue(t *testing.T) {
	eachPair(t, tensorqueue.Options{MaxSize: 1}, func(t *testing.T, from, to *tensorqueue.Queue) {
		held := heldOf(t, from, to)
		put(t, from, "in the queue")
		waiting := make(chan error)
		go func() { waiting <- from.Put(t.Context(), "too many", "", nil, tensorqueue.PutOptions{}) }()
		if from != to {
			closeQueue(t, from)
			if err := <-waiting; !errors.Is(err, tensorqueue.ErrClosed) {
				t.Errorf("a put that waited: %v", err)
			}
		}
		if got := held.Inputs()["x"].(codec.Tensor).Data; !bytes.Equal(got, bytes.Repeat([]byte{7}, len(got))) {
			t.Error("the taken item has lost its data")
		}
		closeItem(t, held)
		if from == to {
			closeQueue(t, from)
			if err := <-waiting; !errors.Is(err, tensorqueue.ErrClosed) {
				t.Errorf("a put that waited: %v", err)
			}
		}
	})
}

// TestCloseAdmitsNoWaitingPut: items that Close drops make no space for waiting Puts.
func TestCloseAdmitsNoWaitingPut(t *testing.T) {
	_, opts := open(t, tensorqueue.Options{MaxSize: 1})
	for range 20 {
		q := join(t, opts)
		put(t, q, "in the queue")
		const puts = 3
		waiting := make(chan error, puts)
		for range puts {
			go func() { waiting <- q.Put(t.Context(), "too many", "", nil, tensorqueue.PutOptions{}) }()
		}
		closeQueue(t, q)
		for range puts {
			if err := <-waiting; !errors.Is(err, tensorqueue.ErrClosed) {
				t.Errorf("a put that waited: %v", err)
			}
		}
	}
}

// heldOf returns an item that was put and got and is not closed, with 100 KiB of 7.
func heldOf(t *testing.T, from, to *tensorqueue.Queue) *tensorqueue.Item {
	t.Helper()
	x := codec.Tensor{DType: codec.DTypeUint8, Shape: []int{100 << 10}, Data: bytes.Repeat([]byte{7}, 100<<10)}
	if err := from.Put(t.Context(), "held", "", map[string]any{"x": x}, tensorqueue.PutOptions{}); err != nil {
		t.Fatal(err)
	}
	return get(t, to)
}

// TestCloseWithdrawsOnlyOwnItems: the items of a producer that leaves are withdrawn from between the
// items of others, which keep their order.
func TestCloseWithdrawsOnlyOwnItems(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{})
	leaves, err := tensorqueue.Join(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		put(t, []*tensorqueue.Queue{q, leaves}[i%2], strconv.Itoa(i))
	}
	closeQueue(t, leaves)
	for size(t, q) > 3 {
		runtime.Gosched()
	}
	for _, rid := range []string{"0", "2", "4"} {
		it := get(t, q)
		if it.RID != rid {
			t.Errorf("got %q, want %q", it.RID, rid)
		}
		closeItem(t, it)
	}
}

// TestUnboundedQueue: a queue without a bound takes items in order, in its store and beyond it, and
// withdraws them with their process.
func TestUnboundedQueue(t *testing.T) {
	const n, each = 300, 4 << 10
	eachPair(t, tensorqueue.Options{StoreBytes: 5 << 18}, func(t *testing.T, from, to *tensorqueue.Queue) {
		x := codec.Tensor{DType: codec.DTypeUint8, Shape: []int{each}, Data: bytes.Repeat([]byte{7}, each)}
		for i := range n {
			if err := from.Put(t.Context(), strconv.Itoa(i), "", map[string]any{"x": x}, tensorqueue.PutOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		if got := size(t, to); got != n {
			t.Errorf("%d items wait", got)
		}
		for i := range n / 2 {
			it := get(t, to)
			if got, ok := it.Inputs()["x"].(codec.Tensor); !ok || it.RID != strconv.Itoa(i) || !bytes.Equal(got.Data, x.Data) {
				t.Fatalf("item %d is %q, %v", i, it.RID, it.Inputs())
			}
			closeItem(t, it)
		}
		if from != to {
			closeQueue(t, from)
		}
	})
}

func TestOptionsAreChecked(t *testing.T) {
	for _, opts := range []tensorqueue.Options{
		{MaxSize: -1}, {MaxSize: tensorqueue.LargestSize + 1}, {MaxItemBytes: 100}, {Transport: 9}, {Name: "a/b"},
	} {
		opts.Socket = filepath.Join(t.TempDir(), "q.sock")
		if _, err := tensorqueue.Open(t.Context(), opts); !errors.Is(err, bus.ErrConfig) {
			t.Errorf("%+v: %v", opts, err)
		}
	}
	if _, err := tensorqueue.Join(t.Context(), tensorqueue.Options{Socket: filepath.Join(t.TempDir(), "none")}); err == nil {
		t.Error("joined a queue that is not there")
	}
}
