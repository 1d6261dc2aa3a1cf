package bus

import (
	"context"
	"errors"
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Open opens a bus whose edges end at the boundary of this process, with memory that other
// processes can map.
func (p Part) Open(ctx context.Context) (OpenedPart, error) {
	g := p.graph()
	opts := p.Opts
	opts.lastActive = p.LastActive
	if opts.Store.ArenaBytes == 0 {
		opts.Store.ArenaBytes, opts.Store.LargeObjectBytes = arenaFor(g, p.Requests)
	}
	opts.Store.Memory = shmstore.Shared
	b, err := openGraph(ctx, g, opts.withDefaults(), p.Lane)
	if err != nil {
		return OpenedPart{}, err
	}
	mem, err := b.store.ArenaSegment()
	if err != nil {
		return OpenedPart{}, errors.Join(err, b.Close(ctx))
	}
	b.shared = accounts.Lasting(mem, nil)
	b.leastBytes = p.InlineBytes + 1
	return OpenedPart{b, b.shared, g.inputPorts, g.resultPorts}, nil
}

// graph is the graph of the stage, whose caller is the host; or without a stage the graph of a
// process that submits requests: inputs to the host, and results from it.
func (p Part) graph() *graph {
	g := &graph{byName: make(map[string]*stage)}
	var st *stage
	name := ""
	if p.Stage != nil {
		st, name = newStage(*p.Stage), p.Stage.Name
		st.oneEach, st.runs = p.OneEach, p.Runs
		g.stages, g.byName[name] = []*stage{st}, st
	}
	var arriving, leaving []*edge
	for _, at := range p.Arriving {
		arriving = append(arriving, at.edge(at.Peer, name).fedByHost())
	}
	for _, at := range p.Leaving {
		leaving = append(leaving, at.edge(name, at.Peer))
	}
	if st == nil {
		g.addPorts(leaving, arriving)
		return g
	}
	for _, e := range arriving {
		g.addEdge(e, nil, st)
	}
	for _, e := range leaving {
		g.addEdge(e, st, nil)
	}
	return g
}

// edge makes an edge that ends at the boundary of this process; its other end is the caller.
func (at Port) edge(from, to string) *edge {
	spec := Edge{
		From: from, To: to, Window: at.Window, WindowBytes: at.WindowBytes, Policy: at.Policy,
		Tensors: at.Tensors, TensorMinBytes: at.TensorMinBytes,
	}
	e := &edge{name: at.Name, spec: spec, window: uint64(at.Window), windowBytes: min(at.WindowBytes, maxWindowBytes)}
	if at.Window == Unbounded {
		e.window = noWindow
	}
	if e.spec.Policy == DropOldest {
		// The host queues and drops: it holds a window of queued deliveries beside those of the consumer. The
		// delivery for which it drops has to be sent, too.
		e.spec.Policy, e.window = Block, noWindow
		e.windowBytes = min(3*e.windowBytes, maxWindowBytes)
	}
	return e
}

// fedByHost makes an edge whose deliveries the host has numbered, and whose windows it keeps.
func (e *edge) fedByHost() *edge {
	e.fed, e.limit = true, min(e.window, uint64(e.windowBytes)/payloadAlign)
	e.spec.Policy, e.window, e.windowBytes = Block, noWindow, maxWindowBytes
	return e
}

// addPorts adds the edges of a process that submits requests to a host.
func (g *graph) addPorts(inputs, results []*edge) {
	g.inputs, g.results = inputs, results
	g.edges = slices.Concat(inputs, results)
	for i, e := range g.edges {
		e.index, e.toOwner = i, i < len(inputs)
	}
}

// minArenaBytes is the least memory that a node's stage gets for its payloads.
const minArenaBytes = 1 << 20

// arenaFor is the memory for all windows of payloads that are sent from this
// process, and a third more for fragmentation; and the largest payload that lies
// in the arena.
func arenaFor(g *graph, requests int) (arenaBytes, largeObjectBytes int64) {
	var need, largest int64
	for _, e := range g.edges {
		if e.fed {
			continue
		}
		n := int64(requests)
		if e.queues() {
			n *= 2
		}
		need += e.windowBytes * n
		largest = max(largest, e.windowBytes)
	}
	arenaBytes = max(need+need/3, minArenaBytes)
	return arenaBytes, min(largest, arenaBytes/2)
}
