package tensorqueue_test

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// python starts a Python process that joins the queue: see testdata/end.py.
func python(t *testing.T, opts tensorqueue.Options, args ...string) *pythontest.Process {
	t.Helper()
	return pythontest.Start(t, pythontest.Command(t, "testdata/end.py", append([]string{opts.Socket}, args...)...))
}

// item is what the Python process reports of an item.
func item(rid string, n, size int) []any {
	if size == 0 {
		return []any{rid, "psm_" + rid, nil}
	}
	crc := crc32.ChecksumIEEE(bytes.Repeat([]byte{byte(n)}, size))
	return []any{rid, "psm_" + rid, map[string]any{"crc": crc, "shape": []int{size / 4, 4}, "n": n}}
}

func putFor(t *testing.T, q *tensorqueue.Queue, rid string, n, size int) {
	t.Helper()
	var inputs map[string]any
	if size > 0 {
		x := codec.Tensor{DType: codec.DTypeUint8, Shape: []int{size / 4, 4}, Data: bytes.Repeat([]byte{byte(n)}, size)}
		inputs = map[string]any{"x": x, "n": n}
	}
	if err := q.Put(t.Context(), rid, "psm_"+rid, inputs, tensorqueue.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

var sizesInPython = []int{0, 64, 4 << 10, 3 << 20}

// TestQueueWithPython: items pass from Go to Python, from Python to Go, and from Python to Python.
func TestQueueWithPython(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 3})
	p, other := python(t, opts), python(t, opts)
	for n, size := range sizesInPython {
		putFor(t, q, "from Go", n, size)
		p.Tell([]any{"get", 60})
		p.Want(item("from Go", n, size))

		p.Tell([]any{"put", "from Python", n, size})
		p.Want(nil)
		it := get(t, q)
		if it.RID != "from Python" || it.ShmName != "psm_from Python" {
			t.Errorf("got %q, %q", it.RID, it.ShmName)
		}
		if x, ok := it.Inputs()["x"].(codec.Tensor); ok != (size > 0) || !bytes.Equal(x.Data, bytes.Repeat([]byte{byte(n)}, size)) {
			t.Errorf("got %v", it.Inputs())
		}
		closeItem(t, it)

		other.Tell([]any{"get", nil})
		p.Tell([]any{"put", "between", n, size})
		p.Want(nil)
		other.Want(item("between", n, size))
	}
	p.Tell([]any{"drain"})
	p.Want(true)
	for range 2 {
		p.Tell([]any{"get", 0})
		p.Want("Empty")
		p.Tell([]any{"get", 0.02})
		p.Want("Empty")
	}
	for n := range 3 {
		p.Tell([]any{"put", fmt.Sprint(n), n, 4 << 10})
		p.Want(nil)
	}
	p.Tell([]any{"put", "too much", 9, 4 << 10, 0.02})
	p.Want("Full")
	other.Tell([]any{"sizes"})
	other.Want([]any{3, 3, false, true})
	other.Tell([]any{"get", 0})
	other.Want(item("0", 0, 4<<10))
	p.Tell([]any{"put", "3", 3, 64})
	p.Want(nil)
	for n, size := range []int{1: 4 << 10, 2: 4 << 10, 3: 64} {
		if n > 0 {
			other.Tell([]any{"get", nil})
			other.Want(item(fmt.Sprint(n), n, size))
		}
	}
	other.Tell([]any{"close"})
	other.Want(nil)
	p.Tell([]any{"drain"})
	p.Want(true)
	if err := other.End(); err != nil {
		t.Error(err)
	}
	if n := size(t, q); n != 0 {
		t.Errorf("%d items are left", n)
	}
}

// TestPythonPutterDies: the items of a dead Python process are withdrawn.
func TestPythonPutterDies(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 3})
	p := python(t, opts)
	p.Tell([]any{"put", "lost", 1, 4 << 10})
	p.Want(nil)
	p.Kill()
	awaitEmpty(t, q)
	putFor(t, q, "next", 2, 64)
	other := python(t, opts)
	other.Tell([]any{"get", 60})
	other.Want(item("next", 2, 64))
}

// TestUnboundedQueueWithPython: a Python process fills a queue without a bound, its store and segments
// beyond it. Its items are withdrawn when it is killed.
func TestUnboundedQueueWithPython(t *testing.T) {
	const n = 600
	q, opts := open(t, tensorqueue.Options{})
	p := python(t, opts)
	p.Tell([]any{"fill", n, 4 << 10, 64 << 10})
	p.Want(n)
	p.Tell([]any{"sizes"})
	p.Want([]any{n, tensorqueue.LargestSize, false, false})
	for i := range n / 2 {
		it := get(t, q)
		if it.RID != fmt.Sprint(i) {
			t.Fatalf("item %d is %q", i, it.RID)
		}
		closeItem(t, it)
	}
	p.Kill()
	awaitEmpty(t, q)
}

// TestPythonSeesTheQueueClose: a waiting get ends with an error.
func TestPythonSeesTheQueueClose(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{})
	p := python(t, opts)
	p.Tell([]any{"sizes"})
	p.Want([]any{0, tensorqueue.LargestSize, true, false})
	p.Tell([]any{"get", 60})
	closeQueue(t, q)
	var got string
	if err := p.Answer(&got); err != nil || got != "Closing" && got != "HostGone" {
		t.Errorf("Python answers %q, %v", got, err)
	}
}

// TestPythonPutsOnGPU: Go and Python get in place what Python puts from a GPU's memory. The memory
// becomes free when the item is done or its getter is dead.
func TestPythonPutsOnGPU(t *testing.T) {
	const each = 128 << 10 // a pool has four of these
	for _, mode := range []string{"cuda_ipc_pool", "cuda_ipc"} {
		t.Run(mode, func(t *testing.T) {
			g, q, opts := openGPU(t, tensorqueue.Options{MaxSize: 3})
			p, other := python(t, opts, mode), python(t, opts)
			for n := range 12 {
				p.Tell([]any{"put_on_gpu", "item", n, each})
				p.Want(nil)
				if n%2 == 0 {
					other.Tell([]any{"get", 60})
					other.Want(item("item", n, each))
					other.Tell([]any{"drop"})
					other.Want(nil)
					continue
				}
				it := get(t, q)
				x, ok := it.Inputs()["x"].(*lane.Tensor)
				if !ok || !it.Message().OnDevice() {
					t.Fatalf("got %v", it.Inputs())
				}
				if err := it.Message().Await(g.stream); err != nil {
					t.Fatal(err)
				}
				if err := g.check(t.Context(), x, bytes.Repeat([]byte{byte(n)}, each)); err != nil {
					t.Error(err)
				}
				closeItem(t, it)
			}
			p.Tell([]any{"stats"})
			p.Want(map[string][]int{"cuda_ipc_pool": {0, 0, 12, 0, 0, 0}, "cuda_ipc": {0, 12, 0, 0, 0, 0}}[mode])
			for n := range 3 {
				p.Tell([]any{"put_on_gpu", "item", n, each})
				p.Want(nil)
				other.Tell([]any{"get", 60})
				other.Want(item("item", n, each))
			}
			other.Kill()
			for n := range 4 { // which fit after its death
				p.Tell([]any{"put_on_gpu", "item", n, each})
				p.Want(nil)
				closeItem(t, get(t, q))
			}
			p.Tell([]any{"put_on_gpu", "lost", 1, each})
			p.Want(nil)
			p.Kill()
			awaitEmpty(t, q)
		})
	}
}

// TestPythonUnwraps: copies of an item's tensors, on a device that the getter chooses, have the bytes
// that were put, and keep no memory of the item: a pool for four items serves more.
func TestPythonUnwraps(t *testing.T) {
	g, q, opts := openGPU(t, tensorqueue.Options{MaxSize: 3, Transport: bus.TensorsPool})
	p := python(t, opts)
	for n := range 12 {
		if err := g.put(t.Context(), q, n); err != nil {
			t.Fatal(err)
		}
		p.Tell([]any{"unwrap", []any{nil, "cpu"}[n%2]})
		data := pattern(n)
		p.Want([]any{fmt.Sprint(n), "name", map[string]uint32{"gpu": crc32.ChecksumIEEE(data), "host": crc32.ChecksumIEEE(data[:64])}})
	}
}
