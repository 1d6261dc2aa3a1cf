package bus

// What other processes stand on: the names by which the ends of a bus at hosts and nodes
// know it. They see plain data, and ask for what they want by a method, so that what lies
// behind these names changes without them.

// port is an edge as a process at one of its ends sees it.
type port struct {
	index          int    // among the edges of the pipeline
	name           string // "from->to"
	peer           string // the stage at the other end; empty: the caller
	window         int    // deliveries, or Unbounded
	windowBytes    int64
	limit          uint64 // of one whose windows are kept elsewhere: deliveries that may be unfinished
	policy         Policy
	tensors        TensorTransport
	tensorMinBytes int64
}

// port is the edge as its consumer sees it.
func (e *edge) port() port {
	return port{
		index: e.index, name: e.name, peer: e.spec.From, window: e.spec.Window, windowBytes: e.windowBytes, limit: e.limit,
		policy: e.spec.Policy, tensors: e.spec.Tensors, tensorMinBytes: e.spec.TensorMinBytes,
	}
}

// describe has the graph say what its ports are, when its windows are known.
func (g *graph) describe() {
	in := func(edges []*edge) (all []port) {
		for _, e := range edges {
			all = append(all, e.port())
		}
		return all
	}
	out := func(edges []*edge) []port {
		all := in(edges)
		for i, e := range edges {
			all[i].peer = e.spec.To
		}
		return all
	}
	g.inputPorts, g.resultPorts = out(g.inputs), in(g.results)
	for _, st := range g.stages {
		st.inPorts, st.outPorts = in(st.in), out(st.out)
	}
}

// ports are those of the caller.
func (b *Bus) ports() (inputs, results []port) { return b.graph.inputPorts, b.graph.resultPorts }

// feed takes in a delivery at a port that another process has numbered, and that has its
// place in the windows there.
func (r *Request) feed(at port, d *Delivery) { r.flows[at.index].feed(d) }
