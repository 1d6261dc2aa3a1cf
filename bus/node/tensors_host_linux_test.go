package node_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// unwrapping is a stage that copies tensors onto its GPU, and checks their bytes.
func unwrapping(name string, m *machine) bus.StageSpec {
	return bus.StageSpec{Name: name, State: bus.StateRequest, Handle: func(t *bus.Task, d *bus.Delivery) error {
		msg, err := d.Tensors(t.Context())
		if err != nil {
			return err
		}
		p, err := m.dev.Alloc(tensorBytes)
		if err != nil {
			return err
		}
		defer func() { _ = m.dev.Free(p) }()
		v, err := msg.Unwrap(m.stream, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return p, nil })
		if err != nil {
			return err
		}
		value := v.(map[string]any)
		number, _ := value["number"].(int64)
		got := make([]byte, tensorBytes)
		x := value["x"].(*lane.Tensor)
		if err := m.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: x.Ptr, Bytes: tensorBytes}); err != nil {
			return err
		}
		if err := errors.Join(m.stream.Synchronize(t.Context()), msg.Err()); err != nil {
			return err
		}
		if !bytes.Equal(got, filling(uint64(number))) {
			return errors.New("other bytes than were sent")
		}
		return t.Emit(fmt.Sprint("well ", number))
	}}
}

// TestStoresOfOthersAreRegistered: the GPU copies tensors from the host memory of other processes.
// The memory of each process is registered once, whether it was announced by the host or by its
// owner, and unregistered when the process dies.
func TestStoresOfOthersAreRegistered(t *testing.T) {
	h := listen(t, tensorLine(bus.TensorsDefault, "make", "read"), tensorHost())
	reader := mustMachine(t)
	child := h.childAs(t, "make tensors", "make")
	n := h.serveOn(t, reader, unwrapping("read", reader))
	r := testbus.StreamOf(t, h.bus)
	mustTrip(t, r, warmup+20)
	before := n.TensorStats()
	if before.Registered < 2 || before.Registered > 3 || before.StagedBytes+before.PageableBytes+before.Refused != 0 {
		t.Errorf("%+v, want the node's own store and the maker's registered, and nothing copied otherwise", before)
	}
	mustTrip(t, r, 20)
	if after := n.TensorStats(); after != before {
		t.Errorf("%+v, and later %+v", before, after)
	}
	kill(t, child)
	wantDied(t, r.Wait(t.Context()), "make", child)
	const own = 2 // the reader's store, and the words of its messages
	testbus.Await(t, func() bool { return reader.driver.Usage().HostMemories == own })
}

// TestMemoryOfNodesIsRegistered: the memory of a node consists of whole pages, with any ArenaBytes
// and with the default for its windows, so that GPUs of all processes can copy from it.
func TestMemoryOfNodesIsRegistered(t *testing.T) {
	for name, store := range map[string]shmstore.Options{"by itself": {}, "as told": {ArenaBytes: 1<<20 + 64}} {
		t.Run(name, func(t *testing.T) {
			p := tensorLine(bus.TensorsDefault, "make", "read")
			p.Edges[0].WindowBytes += 64
			h := listen(t, p, tensorHost())
			var nodes []*node.Node
			for _, stage := range []func(*machine) bus.StageSpec{
				func(m *machine) bus.StageSpec { return making("make", m) },
				func(m *machine) bus.StageSpec { return unwrapping("read", m) },
			} {
				m := mustMachine(t)
				opts := m.join()
				opts.Store = store
				n := h.join(t, opts)
				go func() { _ = n.Serve(context.Background(), stage(m)) }() // ends with the node
				nodes = append(nodes, n)
			}
			mustTrip(t, testbus.StreamOf(t, h.bus), warmup+20)
			for i, n := range nodes {
				if s := n.TensorStats(); s.Registered == 0 || s.Refused > 0 {
					t.Errorf("node %d: %+v", i, s)
				}
			}
		})
	}
}
