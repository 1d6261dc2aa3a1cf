package node_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// keyed is a Python process that puts values with tensors on an emulated GPU, with its own
// settings; see testdata/keyed.py.
func (h *hosted) keyed(t *testing.T, extra args) pythonEnd {
	t.Helper()
	text, err := json.Marshal(extra)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("EXTRA", string(text))
	return h.pythonAs(t, "testdata/keyed.py")
}

// tensorsAt is the answer of keyed.py for a value with one tensor: whether the tensor is on the
// device, and whether it shares the memory of the put, which is changed after the put.
func tensorsAt(n int, on string, shared bool) []any {
	return []any{n, []any{[]any{on, "uint8", []int{100 << 10}, true, !shared}}}
}

const (
	onGPU  = "DeviceTensor"
	onHost = "Tensor"
)

// errorsOf is the last error of a process.
func (p pythonEnd) errorsOf(t *testing.T) string {
	t.Helper()
	var a struct{ Answer string }
	p.tell("last_error", nil)
	if err := p.Answer(&a); err != nil {
		t.Fatal(err)
	}
	return a.Answer
}

// TestKeyedTensors: tensors put under a key stay on the device, whether the get comes before or
// after the put, and their memory is free when the fetching process lets go of them.
func TestKeyedTensors(t *testing.T) {
	for transport, shared := range map[string]bool{"cuda_ipc_pool": false, "cuda_ipc": true} {
		t.Run(transport, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			a, b := h.keyed(t, args{"tensor_transport": transport}), h.keyed(t, args{"tensor_transport": "default"})
			a.do("raw", nil, true)
			b.do("raw", nil, false)
			a.do("put", args{"key": "r1_thinker_0", "n": 1}, true)
			a.do("until_in_use", args{"n": 1}, 1)
			b.do("get", args{"key": "r1_thinker_0"}, tensorsAt(1, onGPU, shared))
			b.do("get", args{"key": "r1_thinker_0"}, nil)
			a.do("until_in_use", args{"n": 0}, 0)

			b.tell("hold", args{"key": "r1_thinker_1", "seconds": 60})
			a.do("put", args{"key": "r1_thinker_1", "n": 2, "tensors": 2}, true)
			b.want(true)
			a.do("put", args{"key": "other", "n": 3}, true)
			b.do("get", args{"key": "other"}, tensorsAt(3, onGPU, shared))
			a.do("until_in_use", args{"n": 1}, 1) // the held value
			b.do("drop", args{"key": "r1_thinker_1"}, true)
			a.do("until_in_use", args{"n": 0}, 0)

			// Values without tensors on the device are the same as with any other connector.
			a.do("put", args{"key": "none", "n": 4, "tensors": 0}, true)
			b.do("get", args{"key": "none"}, []any{4, []any{}})
			b.do("put", args{"key": "default", "n": 5}, true)
			a.do("get", args{"key": "default"}, tensorsAt(5, onHost, false))
			for _, p := range []pythonEnd{a, b} {
				p.do("errors", nil, args{})
			}
			h.wantEmpty(t)
		})
	}
}

// TestKeyedTensorsOfTorch: tensors of torch arrive as tensors of torch, and keep their memory while
// there are tensors or views of them.
func TestKeyedTensorsOfTorch(t *testing.T) {
	pythontest.Interpreter(t, "torch")
	for _, transport := range []string{"cuda_ipc_pool", "cuda_ipc"} {
		t.Run(transport, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			extra := args{"torch": true, "tensor_transport": transport}
			a, b, c := h.keyed(t, extra), h.keyed(t, extra), h.keyed(t, nil)
			first := transport == "cuda_ipc_pool"
			for _, dtype := range []string{"uint8", "bfloat16", "float32", "int64"} {
				a.do("put", args{"key": "k", "n": 1, "dtype": dtype, "shape": []int{32, 64}}, true)
				b.do("hold", args{"key": "k"}, true)
				b.do("look", args{"key": "k"}, []any{1, []any{[]any{"torch", dtype, []int{32, 64}, true, first}}})
				b.do("hold_part", args{"key": "k"}, []int{1, 512})
				a.do("until_in_use", args{"n": 1}, 1)
				b.do("drop", args{"key": "k"}, true)
				a.do("until_in_use", args{"n": 0}, 0)
			}
			a.do("odd", args{"key": "k"}, true)
			b.do("get_odd", args{"key": "k"}, true)
			a.do("put", args{"key": "k", "n": 5}, true) // for a process without torch
			c.do("get", args{"key": "k"}, tensorsAt(5, onGPU, !first))
			for _, p := range []pythonEnd{a, b} {
				p.do("errors", nil, args{})
			}
		})
	}
}

// TestKeyedTensorsComeBack: the memory of an unfetched value is free when the value is replaced,
// cleaned up or swept, or its connector is closed. The memory of a fetched value is free when its
// process is killed.
func TestKeyedTensorsComeBack(t *testing.T) {
	h := exchangeHost(t, bus.Options{ExchangeTTL: time.Hour})
	a, b := h.keyed(t, nil), h.keyed(t, nil)
	free := func() { t.Helper(); a.do("until_in_use", args{"n": 0}, 0) }
	for n := range 3 { // more than the pool has space for
		for i := range 3 {
			a.do("put", args{"key": "again", "n": 3*n + i}, true)
			a.do("until_in_use", args{"n": 1}, 1)
		}
	}
	a.do("stats", nil, []int{0, 0, 9, 0, 0, 0})
	b.do("get", args{"key": "again"}, tensorsAt(8, onGPU, false))
	free()

	a.do("put", args{"key": "r1_thinker_0", "n": 1}, true)
	a.do("cleanup", args{"key": "r1_thinker_0"}, nil)
	free()
	b.do("get", args{"key": "r1_thinker_0"}, nil)

	a.do("put", args{"key": "k", "n": 1}, true)
	b.do("hold", args{"key": "k"}, true)
	a.do("until_in_use", args{"n": 1}, 1)
	b.do("look", args{"key": "k"}, tensorsAt(1, onGPU, false))
	b.Kill()
	free()

	a.do("put", args{"key": "k", "n": 1}, true)
	a.do("close", nil, nil)
	free()
	h.wantEmpty(t)
}

// TestKeyedTensorsAreSwept: the memory of a value that no process gets in time is free.
func TestKeyedTensorsAreSwept(t *testing.T) {
	h := exchangeHost(t, bus.Options{ExchangeTTL: time.Millisecond})
	a := h.keyed(t, nil)
	a.do("put", args{"key": "k", "n": 1}, true)
	a.do("until_in_use", args{"n": 0}, 0)
	h.wantEmpty(t)
}

// TestKeyedTensorsAreComplete: a value under a key is complete. A process that is killed during a
// put leaves nothing, and the death of a producer takes back no fetched value.
func TestKeyedTensorsAreComplete(t *testing.T) {
	for _, transport := range []string{"cuda_ipc_pool", "cuda_ipc"} {
		t.Run(transport, func(t *testing.T) {
			shared := transport == "cuda_ipc"
			h := exchangeHost(t, bus.Options{})
			a, b := h.keyed(t, args{"tensor_transport": transport}), h.keyed(t, nil)
			a.do("put_late", args{"key": "late", "n": 1}, []any{false, nil})
			b.do("get", args{"key": "late"}, nil)
			a.do("complete", args{"key": "late"}, tensorsAt(1, onGPU, false))
			a.do("until_in_use", args{"n": 0}, 0)

			a.do("put", args{"key": "held", "n": 2}, true)
			b.do("hold", args{"key": "held"}, true)
			a.do("put", args{"key": "taken", "n": 3}, true)
			a.do("put", args{"key": "lost", "n": 4}, true)
			b.tell("fetch", args{"key": "taken"})
			var size struct{ Answer int }
			if err := b.Answer(&size); err != nil || size.Answer <= 32<<10 {
				t.Fatalf("a payload of %d bytes (%v), want one that does not travel in a message", size.Answer, err)
			}
			a.Kill()
			testbus.Await(t, func() bool { return h.bus.Stats().Exchange.Entries == 0 })
			b.do("get", args{"key": "lost"}, nil)
			b.do("look", args{"key": "held"}, tensorsAt(2, onGPU, shared))
			if shared { // the memory was the producer's, and no other process had opened it
				b.do("take", args{"key": "taken"}, "Poisoned")
			} else {
				b.do("take", args{"key": "taken"}, tensorsAt(3, onGPU, false))
			}
			b.do("drop", args{"key": "held"}, true)
			b.do("errors", nil, args{})
			h.wantEmpty(t)
		})
	}
}

// TestKeyedTensorsPoisonedByDeath: a value of a killed process that no other process had opened is
// reported as poisoned.
func TestKeyedTensorsPoisonedByDeath(t *testing.T) {
	for _, transport := range []string{"cuda_ipc_pool", "cuda_ipc"} {
		t.Run(transport, func(t *testing.T) {
			h := exchangeHost(t, bus.Options{})
			a, b := h.keyed(t, args{"tensor_transport": transport}), h.keyed(t, nil)
			a.do("put", args{"key": "k", "n": 1}, true)
			b.tell("fetch", args{"key": "k"})
			if err := b.Answer(new(any)); err != nil {
				t.Fatal(err)
			}
			a.Kill()
			testbus.Await(t, func() bool { return len(h.server.Processes()) == 1 })
			b.do("take", args{"key": "k"}, "Poisoned")
			h.wantEmpty(t)
		})
	}
}

// TestKeyedTensorsNeverComplete: a value with incomplete tensors is not handed out, and is poisoned
// when its producer is killed.
func TestKeyedTensorsNeverComplete(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a, b := h.keyed(t, nil), h.keyed(t, nil)
	fetch := func(key string) {
		t.Helper()
		b.tell("fetch", args{"key": key})
		if err := b.Answer(new(any)); err != nil {
			t.Fatal(err)
		}
	}
	a.do("put", args{"key": "k", "n": 1}, true)
	b.do("get", args{"key": "k"}, tensorsAt(1, onGPU, false)) // the arena is mapped from here on
	a.do("put_incomplete", args{"key": "k", "n": 2}, true)
	fetch("k")
	b.do("take", args{"key": "k", "seconds": 0.001}, "Unavailable")
	fetch("k") // the value was put back
	a.Kill()
	b.do("take", args{"key": "k"}, "Poisoned")
	h.wantEmpty(t)
}

// TestKeyedTensorsOnInvisibleGPU: a get in a process that does not see the GPU fails with the
// reason, and the value stays under its key for other processes.
func TestKeyedTensorsOnInvisibleGPU(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a, b, c := h.keyed(t, nil), h.keyed(t, nil), h.keyed(t, nil)
	a.do("put", args{"key": "k", "n": 1}, true)
	b.do("blind", nil, nil)
	for _, seconds := range []float64{0, 60} { // a get, and one that waits
		b.do("get", args{"key": "k", "seconds": seconds}, nil)
		if e := b.errorsOf(t); !strings.Contains(e, "Unavailable: its tensors on a GPU cannot be had here, and it lies under its key as before: GPU-656d756c") {
			t.Errorf("the error is %q", e)
		}
	}
	b.do("errors", nil, args{"Unavailable": 2})
	a.do("until_in_use", args{"n": 1}, 1)
	c.do("get", args{"key": "k"}, tensorsAt(1, onGPU, false))
	c.do("put", args{"key": "here", "n": 2}, true)
	c.do("hold", args{"key": "here"}, true)
	c.do("again", args{"key": "here", "to": "there"}, true) // an emulated GPU has no other's memory
	a.do("get", args{"key": "there"}, tensorsAt(2, onHost, false))
	a.do("until_in_use", args{"n": 0}, 0)
}

// TestKeyedTensorsInGo: a Go program that gets such a value cannot decode it, and the memory comes
// back.
func TestKeyedTensorsInGo(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a := h.keyed(t, nil)
	a.do("put", args{"key": "k", "n": 1}, true)
	c := connector.New("exchange", h.exchange(t), omni.Serializer{})
	v, err := c.Get(t.Context(), exchangeEdge, "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	var value any
	if err := v.Decode(&value); err == nil {
		t.Errorf("decoded as %v", value)
	}
	v.Release()
	a.do("until_in_use", args{"n": 0}, 0)
}

// TestKeyedTensorsFallBack: tensors that are too small, or find no space, travel in host memory,
// and are counted.
func TestKeyedTensorsFallBack(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	for _, of := range []struct {
		name  string
		extra args
		put   args
		stats []int
		on    string
	}{
		{"small", args{"min_bytes": 100<<10 + 1}, nil, []int{1, 0, 0, 0, 1, 0}, onHost},
		{"just large enough", args{"min_bytes": 100 << 10}, nil, []int{0, 0, 1, 0, 0, 0}, onGPU},
		{"more than half an arena", nil, args{"shape": []int{300 << 10}}, []int{1, 0, 0, 0, 0, 1}, onHost},
		{"in the metadata", args{"shm_threshold_bytes": 1 << 20}, nil, []int{0, 0, 1, 0, 0, 0}, onGPU},
	} {
		t.Run(of.name, func(t *testing.T) {
			a, b := h.keyed(t, of.extra), h.keyed(t, nil)
			put := args{"key": "k", "n": 1}
			want := tensorsAt(1, of.on, false)
			if shape, ok := of.put["shape"]; ok {
				put["shape"] = shape
				want = []any{1, []any{[]any{of.on, "uint8", shape, true, true}}}
			}
			a.do("put", put, true)
			a.do("stats", nil, of.stats)
			b.do("get", args{"key": "k"}, want)
			a.do("errors", nil, args{})
		})
	}
}

// TestKVCachesOfVLLMOmni: vLLM-Omni's KV cache manager sends and receives caches: packed into a
// tensor, as for connectors that take raw data, and as bytes without a device.
func TestKVCachesOfVLLMOmni(t *testing.T) {
	if os.Getenv("OMNIBUS_VLLM_OMNI") == "" {
		t.Skip("OMNIBUS_VLLM_OMNI does not say where vLLM-Omni is")
	}
	for _, module := range []string{"torch", "msgspec", "numpy"} {
		pythontest.Interpreter(t, module)
	}
	h := exchangeHost(t, bus.Options{})
	t.Setenv("ROLE", "sends")
	a := h.pythonAs(t, "testdata/kvmanager.py")
	t.Setenv("ROLE", "receives")
	b := h.pythonAs(t, "testdata/kvmanager.py")
	received := func(request string, n int) []any {
		return []any{request, []int{1, 2, n}, args{"seq_len": 16}, true}
	}
	a.do("send", args{"request": "r1", "n": 1, "device": true}, []any{true, 0, 1, 0})
	b.do("receive", args{"request": "r1", "n": 1}, received("r1", 1))
	b.tell("receive", args{"request": "r2", "n": 2}) // it polls
	a.do("send", args{"request": "r2", "n": 2, "device": true}, []any{true, 0, 2, 0})
	b.want(received("r2", 2))
	a.do("send", args{"request": "r3", "n": 3, "device": true}, []any{true, 0, 3, 0})
	b.do("unpack", args{"request": "r3", "n": 3}, []any{"torch.uint8", 1, 6, true})    // the value is only a number
	a.do("send", args{"request": "r4", "n": 4, "device": false}, []any{true, 0, 3, 0}) // as bytes
	b.do("receive", args{"request": "r4", "n": 4}, received("r4", 4))
	h.wantEmpty(t)
}
