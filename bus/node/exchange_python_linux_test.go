package node_test

import (
	"bytes"
	"fmt"
	"maps"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// pythonEnd is a Python process that executes the lines it reads: see its script,
// testdata/exchange.py or another.
type pythonEnd struct{ *pythontest.Process }

func (h *hosted) python(t *testing.T) pythonEnd {
	t.Helper()
	return h.pythonAs(t, "testdata/exchange.py")
}

func (h *hosted) pythonAs(t *testing.T, script string) pythonEnd {
	t.Helper()
	cmd := pythontest.Command(t, script)
	cmd.Env = append(cmd.Env, node.EnvSocket+"="+h.path)
	return pythonEnd{pythontest.Start(t, cmd)}
}

// tell has the process execute a command, without waiting.
func (p pythonEnd) tell(do string, args map[string]any) {
	q := map[string]any{"do": do}
	maps.Copy(q, args)
	p.Tell(q)
}

// want waits for the answer, and compares it.
func (p pythonEnd) want(answer any) {
	p.Want(map[string]any{"answer": answer, "errors": map[string]int{}})
}

func (p pythonEnd) do(do string, args map[string]any, answer any) {
	p.tell(do, args)
	p.want(answer)
}

// exchanged is the value that the script puts and reads.
type exchanged struct {
	N    int    `msgpack:"n"`
	Data []byte `msgpack:"data"`
}

func pythonPattern(n, size int) []byte {
	row := make([]byte, 256)
	for i := range row {
		row[i] = byte(n + i)
	}
	return bytes.Repeat(row, size/len(row))
}

func (x exchanged) described() map[string]any {
	return map[string]any{"n": x.N, "size": len(x.Data), "whole": true}
}

type args = map[string]any

var exchangeSizes = []int{256, 1 << 20, 12 << 20}

// TestExchangeWithPython: Go and Python put and get the same values, in both directions, with get
// before and after put.
func TestExchangeWithPython(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	ends := map[string]connector.Transport{"the host": h.bus.Exchange(), "a node": h.exchange(t)}
	p, other := h.python(t), h.python(t)
	for name, end := range ends {
		c := connector.New("exchange", end, codec.MsgpackSerializer{})
		for _, size := range exchangeSizes {
			t.Run(fmt.Sprint(name, " ", size), func(t *testing.T) {
				value := exchanged{N: size % 251, Data: pythonPattern(size%251, size)}
				if _, _, err := c.Put(t.Context(), exchangeEdge, "r1_thinker_0", value); err != nil {
					t.Fatal(err)
				}
				p.do("get", args{"key": "r1_thinker_0", "seconds": 0}, value.described())
				p.do("get", args{"key": "r1_thinker_0", "seconds": 0}, nil)

				p.tell("get", args{"key": "r1_thinker_1", "seconds": 60})
				if _, _, err := c.Put(t.Context(), exchangeEdge, "r1_thinker_1", value); err != nil {
					t.Fatal(err)
				}
				p.want(value.described())

				p.tell("put", args{"key": "r1_thinker_2", "n": 7, "size": size})
				v, err := c.Await(t.Context(), exchangeEdge, "r1_thinker_2", nil)
				if err != nil {
					t.Fatal(err)
				}
				p.want(true)
				var got exchanged
				if err := v.Decode(&got); err != nil {
					t.Error(err)
				}
				if got.N != 7 || !bytes.Equal(got.Data, pythonPattern(7, size)) {
					t.Errorf("got n=%d and %d bytes, which are not those that were put", got.N, len(got.Data))
				}
				v.Release()
			})
		}
	}
	// The last size leaves no space for another value.
	for _, size := range append(exchangeSizes, 30<<20) {
		for n := range 5 {
			other.tell("get", args{"key": "k", "seconds": 60})
			p.do("put", args{"key": "k", "n": n, "size": size, "tensor": true}, true)
			other.want(exchanged{N: n, Data: make([]byte, size)}.described())
		}
	}
	h.wantEmpty(t)
}

// TestExchangePythonViews: a payload stays as long as Python has a view of it, even if its producer
// dies, and no longer.
func TestExchangePythonViews(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a, b := h.python(t), h.python(t)
	for n := range 3 {
		a.do("put", args{"key": fmt.Sprint("k", n), "n": n, "size": 1 << 20, "tensor": true}, true)
		b.do("hold", args{"key": fmt.Sprint("k", n)}, true)
	}
	if held := h.server.Holdings(); len(held) != 3 || held[0].Exchange != "fetched" {
		t.Fatalf("the leases are %+v, want three that were fetched", held)
	}
	b.do("drop", args{"key": "k0"}, nil)
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 2 })
	// The next payload can only go to the space of the first one.
	a.do("put", args{"key": "k3", "n": 3, "size": 1 << 20, "tensor": true}, true)
	for n := 1; n < 3; n++ {
		b.do("look", args{"key": fmt.Sprint("k", n)}, exchanged{N: n, Data: make([]byte, 1<<20)}.described())
	}
	a.Kill()
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 2 })
	b.do("get", args{"key": "k3", "seconds": 0}, nil) // no process had fetched it
	for n := 1; n < 3; n++ {
		b.do("look", args{"key": fmt.Sprint("k", n)}, exchanged{N: n, Data: make([]byte, 1<<20)}.described())
		b.do("drop", args{"key": fmt.Sprint("k", n)}, nil)
	}
	h.wantEmpty(t)
}

// TestExchangePythonDies: no payload stays of a process that was killed, or that cleans up.
func TestExchangePythonDies(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	a, b := h.python(t), h.python(t)
	for _, key := range []string{"r1_thinker_0", "r1_thinker_1", "r2_thinker_0", "r3"} {
		a.do("put", args{"key": key, "n": 1, "size": 1 << 20, "tensor": true}, true)
	}
	for _, key := range []string{"r1", "r1_thinker_0", "r1_thinker_1"} {
		a.do("cleanup", args{"key": key}, nil)
	}
	b.do("get", args{"key": "r1_thinker_1", "seconds": 0}, nil)
	if n := h.bus.Stats().Exchange.Entries; n != 2 {
		t.Errorf("%d entries are left, want the 2 of other requests", n)
	}
	b.do("hold", args{"key": "r3"}, true)
	b.Kill()
	testbus.Await(t, func() bool { return len(h.server.Holdings()) == 1 })
	a.do("close", nil, nil)
	h.wantEmpty(t)

	c := h.python(t)
	c.do("put", args{"key": "k", "n": 1, "size": 1 << 20}, true)
	c.Kill()
	h.wantEmpty(t)
}
