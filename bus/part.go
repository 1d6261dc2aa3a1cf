package bus

import (
	"context"
	"errors"
	"slices"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Open opens a bus whose edges end at the boundary of this process, with memory that others
// can read.
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

// graph is that of the stage, where the host is the caller, or one of a process that submits
// requests to a host: what goes there, and what comes from there. No stage is between them.
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

// edge is an edge that ends at the boundary of this process, where the host is the
// caller.
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
		// What is to be dropped waits at the host, beside what the consumer has. When both are full, the host
		// drops for what comes: that has to be on its way.
		e.spec.Policy, e.window = Block, noWindow
		e.windowBytes = min(3*e.windowBytes, maxWindowBytes)
	}
	return e
}

// fedByHost has deliveries come on the edge that the host has numbered, and whose
// windows it keeps.
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

// arenaFor is as much memory as the windows of what is sent from here can
// need, and a third more for what lies between payloads; and the largest of
// them that lies there.
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
