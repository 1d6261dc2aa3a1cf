package config

import (
	"cmp"
	"slices"
	"strings"
)

// sort returns the stages, by their places in the file, in topological order:
// of the stages that may come next, the first of the file does. It reports
// cycles and then returns false.
func (w *wiring) sort(drafts []draft) ([]int, bool) {
	waiting := make([]int, len(drafts))
	next := make([][]*wire, len(drafts))
	for _, e := range w.order {
		waiting[w.ids[e.to]]++
		next[w.ids[e.from]] = append(next[w.ids[e.from]], e)
	}
	var order []int
	placed := make([]bool, len(drafts))
	for range drafts {
		i := firstReady(waiting, placed)
		if i < 0 {
			w.cycles(drafts, next, placed)
			return nil, false
		}
		placed[i] = true
		order = append(order, i)
		for _, e := range next[i] {
			waiting[w.ids[e.to]]--
		}
	}
	return order, true
}

func firstReady(waiting []int, placed []bool) int {
	for i, n := range waiting {
		if n == 0 && !placed[i] {
			return i
		}
	}
	return -1
}

// cycles reports one cycle for each set of stages that all lead to each
// other, among those that could not be placed.
func (w *wiring) cycles(drafts []draft, next [][]*wire, done []bool) {
	prev := make([][]*wire, len(drafts))
	for _, e := range w.order {
		prev[w.ids[e.to]] = append(prev[w.ids[e.to]], &wire{ends: ends{e.to, e.from}})
	}
	for i := range drafts {
		if done[i] {
			continue
		}
		ahead := w.search(next, i)
		if ahead[i] == nil {
			continue
		}
		w.cycle(ahead, i)
		behind := w.search(prev, i)
		for j := range drafts {
			done[j] = done[j] || ahead[j] != nil && behind[j] != nil
		}
	}
}

// search walks breadth first from a stage. The result has, for each stage
// that can be reached, the last edge of a shortest way there.
func (w *wiring) search(next [][]*wire, start int) []*wire {
	via := make([]*wire, len(next))
	queue := []int{start}
	for len(queue) > 0 {
		i := queue[0]
		queue = queue[1:]
		for _, e := range next[i] {
			if to := w.ids[e.to]; via[to] == nil {
				via[to] = e
				queue = append(queue, to)
			}
		}
	}
	return via
}

// cycle reports a shortest cycle through a stage. The position is that of the
// edge that stands last in the file: the edges before it made no cycle.
func (w *wiring) cycle(via []*wire, start int) {
	closing := via[start]
	names := []string{closing.to}
	for e := closing; ; {
		names = append(names, e.from)
		if e.pos.compare(closing.pos) > 0 {
			closing = e
		}
		i := w.ids[e.from]
		if i == start {
			break
		}
		e = via[i]
	}
	slices.Reverse(names)
	w.problemf(closing.pos, "the edges form a cycle: %s", strings.Join(names, " -> "))
}

// fill writes the resolved stages and edges.
func (w *wiring) fill(p *Pipeline, drafts []draft, order []int) {
	rank := make(map[string]int, len(order))
	limit := make(map[string]int)
	for r, i := range order {
		rank[drafts[i].ID] = r
	}
	p.Edges = make([]Edge, 0, len(w.order))
	for _, e := range w.order {
		p.Edges = append(p.Edges, w.edge(e))
		if e.listed != nil && e.listed.inflight != 0 && (limit[e.to] == 0 || e.listed.inflight < limit[e.to]) {
			limit[e.to] = e.listed.inflight
		}
	}
	slices.SortStableFunc(p.Edges, func(a, b Edge) int { return cmp.Compare(rank[a.To], rank[b.To]) })
	for _, c := range w.calls {
		e := w.edge(&wire{ends: c.ends, listed: c, pos: c.pos})
		e.Connector = Connector{}
		if e.From == callerEnd {
			e.From = ""
			if c.inflight != 0 && (limit[e.To] == 0 || c.inflight < limit[e.To]) {
				limit[e.To] = c.inflight
			}
		} else {
			e.To = ""
		}
		p.CallerEdges = append(p.CallerEdges, e)
	}
	for _, i := range order {
		stage := drafts[i].Stage
		stage.MaxInflight = firstSet(stage.MaxInflight, limit[stage.ID], w.inflight)
		p.Stages = append(p.Stages, stage)
	}
	w.remote(p.Edges)
}

func (w *wiring) edge(e *wire) Edge {
	edge := Edge{From: e.from, To: e.to, WindowSize: w.window, Pos: e.pos}
	if e.listed != nil {
		edge.WindowSize = firstSet(e.listed.window, w.window)
		edge.WindowBytes, edge.Policy = e.listed.windowBytes, e.listed.policy
		edge.TensorTransport, edge.MinBytes = e.listed.tensors, e.listed.minBytes
	}
	switch {
	case e.input != nil:
		edge.Connector = *e.input.connector
	case e.output != nil:
		edge.Connector = *e.output.connector
	default:
		edge.Connector = Connector{Type: SharedMemory, Auto: true}
	}
	w.cudaIPC(e, &edge)
	w.tensors(e, edge)
	return edge
}

// cudaIPC has an edge say of its tensors what its CudaIPC connector says, and reports an edge that
// says something else.
func (w *wiring) cudaIPC(e *wire, edge *Edge) {
	if edge.Connector.Type != CudaIPC {
		return
	}
	how, _ := edge.Connector.Extra.Get("tensor_transport")
	least, _ := edge.Connector.Extra.Get("min_bytes")
	text, _ := how.(string)
	minBytes, _ := least.(int64)
	own := Edge{TensorTransport: cmp.Or(TensorTransport(text), TensorsIPC), MinBytes: cmp.Or(minBytes, edge.MinBytes)}
	if cmp.Or(edge.TensorTransport, own.TensorTransport) != own.TensorTransport || cmp.Or(edge.MinBytes, own.MinBytes) != own.MinBytes {
		w.problemf(cmp.Or(e.listed.tensorsPos, e.listed.pos), "the edge %s has tensor_transport: %s and min_bytes: %d, and its connector %s has %s and %d: write them in one of the two places",
			e, cmp.Or(edge.TensorTransport, own.TensorTransport), edge.MinBytes, edge.Connector, own.TensorTransport, own.MinBytes)
	}
	edge.TensorTransport, edge.MinBytes = own.TensorTransport, own.MinBytes
}

// tensors checks that an edge can have the transport of tensors that it names.
func (w *wiring) tensors(e *wire, edge Edge) {
	lane := edge.TensorTransport != "" && edge.TensorTransport != TensorsDefault
	switch {
	case lane && runs(edge.Connector.Type) && !edge.Connector.inStore():
		w.problemf(e.listed.tensorsPos, "the edge %s has the tensor_transport %s, and %s, whose values hold no memory of GPUs: use a %s of mode %s, or tensor_transport: %s",
			e, edge.TensorTransport, edge.Connector, SharedMemory, modeRing, TensorsDefault)
	case !lane && edge.MinBytes > 0:
		w.notef(e.listed.pos, "min_bytes of the edge %s counts for nothing: its tensors all go through host memory, unless tensor_transport is %s or %s",
			e, TensorsIPC, TensorsPool)
	}
}

// remote notes each definition in use that this build cannot run.
func (w *wiring) remote(edges []Edge) {
	for _, e := range edges {
		if _, ok := family(e.Connector.Type); ok && !runs(e.Connector.Type) {
			w.notef(e.Connector.Pos, "%s is valid, but this build cannot run it: %s", e.Connector, e.Connector.advice())
		}
	}
}
