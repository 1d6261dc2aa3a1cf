package config

import (
	"fmt"
	"slices"
	"strings"
)

// callerEnd is how a file names the caller at the end of an edge, unless a stage has that id.
const callerEnd = "caller"

// ends are the two stages of an edge.
type ends struct{ from, to string }

func (e ends) String() string { return e.from + " -> " + e.to }

// A wire is what the three places of a file say about one edge.
type wire struct {
	ends
	input, output *reference // the connectors that the receiver and the sender name
	listed        *listed    // the entry under edges
	pos           Position
}

// listed is an entry of the list edges.
type listed struct {
	ends
	pos         Position
	window      int
	inflight    int
	windowBytes int64
	policy      Policy
	tensors     TensorTransport
	tensorsPos  Position
	minBytes    int64
	ours        *node
}

// wiring collects the edges of a file. Those to one stage are in the order in which the file names them: in edges, then in
// engine_input_source of the stage, then in connectors.
type wiring struct {
	*reading
	ids   map[string]int // stages, by their place in the file
	wires map[ends]*wire
	order []*wire
	calls []*listed // edges from and to the caller
	lists bool      // the file lists edges between stages
	bad   bool      // a reference was refused: the edges are not all here
}

// resolve finds the edges, orders the stages along them, and fills in what
// depends on both.
func (c *reading) resolve(p *Pipeline, drafts []draft, edges *node) {
	w := &wiring{reading: c, ids: make(map[string]int), wires: make(map[ends]*wire)}
	for i, d := range drafts {
		w.ids[d.ID] = i
	}
	w.list(edges)
	for _, d := range drafts {
		for _, source := range d.sources {
			w.add(ends{source.stage, d.ID}, source.pos)
		}
	}
	for _, d := range drafts {
		w.connectors(d)
	}
	w.sides()
	w.joins(drafts)
	w.checkCalls(drafts)
	if order, ok := w.sort(drafts); ok {
		w.fill(p, drafts, order)
	}
}

// connectors adds the edges that a stage's connectors name.
func (w *wiring) connectors(d draft) {
	for _, ref := range d.inputs {
		if wire := w.add(ends{ref.stage, d.ID}, ref.pos); wire != nil {
			wire.input = &ref
			w.agree(wire, &ref, wire.output)
		}
	}
	for _, ref := range d.outputs {
		if wire := w.add(ends{d.ID, ref.stage}, ref.pos); wire != nil {
			wire.output = &ref
			w.agree(wire, &ref, wire.input)
		}
	}
}

// add returns the wire between two stages, nil if there can be none.
func (w *wiring) add(e ends, pos Position) *wire {
	known := w.known(e.from, pos)
	known = w.known(e.to, pos) && known
	if !known {
		return nil
	}
	if e.from == e.to {
		w.bad = true
		w.problemf(pos, "an edge leads from the stage %s to itself", e.from)
		return nil
	}
	if found := w.wires[e]; found != nil {
		return found
	}
	added := &wire{ends: e, pos: pos}
	w.wires[e] = added
	w.order = append(w.order, added)
	return added
}

// known reports an id that no stage has, unless stages had to be left out.
func (w *wiring) known(id string, pos Position) bool {
	if _, ok := w.ids[id]; ok {
		return true
	}
	w.bad = true
	if !w.incomplete {
		w.problemf(pos, "unknown stage %s: the file has %s", shorten(id), w.someIDs())
	}
	return false
}

func (w *wiring) someIDs() string {
	const most = 8
	some := make([]string, min(len(w.ids), most))
	for id, i := range w.ids {
		if i < len(some) {
			some[i] = id
		}
	}
	if len(w.ids) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(some, ", "), len(w.ids)-most)
	}
	return strings.Join(some, ", ")
}

// agree checks the connectors at the two ends of an edge. If they have one
// type but are two definitions, that of the receiver counts.
func (w *wiring) agree(e *wire, here, other *reference) {
	if other == nil || here.connector.Type == "" || other.connector.Type == "" {
		return
	}
	in, out := e.input.connector, e.output.connector
	second := here
	if other.pos.compare(here.pos) > 0 {
		second = other
	}
	switch {
	case in.Type != out.Type:
		w.problemf(second.pos, "the ends of the edge %s disagree: stage %s sends through %s (%s), stage %s receives through %s (%s)",
			e, e.from, out, e.output.pos.line(second.pos), e.to, in, e.input.pos.line(second.pos))
	case in.Name != out.Name || in.Name == "":
		w.notef(second.pos, "the ends of the edge %s define their %s twice: the receiver's definition (%s) counts",
			e, in.Type, e.input.pos.line(second.pos))
	}
}

// sides reports a stage of vLLM-Omni that puts what the next stage cannot find: a worker has one connector for both
// directions, that of its incoming edge. Files without a drop-in are vLLM-Omni's own, or this project's.
func (w *wiring) sides() {
	for _, in := range w.order {
		for _, out := range w.order {
			here, next := in.connector(), out.connector()
			if out.from != in.to || !here.isDropIn() && !next.isDropIn() {
				continue
			}
			at := out.pos
			if here.isDropIn() {
				at = here.Pos
			}
			switch from, to := here.place(), next.place(); {
			case here.isDropIn() && (from.mode == "nixl" || from.mode == "mooncake-engine") && !here.sends():
				w.problemf(at, "the stage %s receives in mode %s, and sends to the stage %s: give this connector outgoing: {zmq_port: N}, with a port of that stage's own", in.to, from.mode, out.to)
			case from == to, to.mode == modeRing && from == (place{modeSegment, ""}):
			default:
				w.problemf(at, "the stage %s receives by %v, and its edge to the stage %s has %v: vLLM-Omni uses the connector of the incoming edge for both, so the stage %s does not find the values: "+
					"take %s for both edges, with the same settings, or mode: segment where the other edge has %s", in.to, from, out.to, to, out.to, dropIn, SharedMemory)
			}
		}
	}
}

// place is where a connector of vLLM-Omni puts values, and gets them.
type place struct{ mode, where string }

func (p place) String() string {
	if p.where == "" {
		return "mode " + p.mode
	}
	return "mode " + p.mode + " (" + p.where + ")"
}

// place is where a worker of vLLM-Omni puts by the connector; an edge without one has vLLM-Omni's own for shared memory.
func (c *Connector) place() place {
	switch {
	case c == nil, c.Type == SharedMemory:
		return place{mode: modeSegment}
	case c.Type != dropIn:
		return place{mode: c.Type}
	}
	text := func(key, otherwise string) string {
		if v, set := c.Extra.Get(key); set && v != nil {
			return fmt.Sprint(v)
		}
		return otherwise
	}
	switch mode := text(modeKey, modeRing); mode {
	case modeRing:
		return place{mode, text("socket", text("bus", ""))}
	case modeSegment:
		return place{mode, strings.TrimSuffix(strings.TrimSuffix(text("dir", ""), "/"), "/dev/shm")}
	default:
		return place{mode: mode}
	}
}

func (c *Connector) isDropIn() bool { return c != nil && c.Type == dropIn }

// sends reports whether a drop-in whose engine listens has a listener for the stage that receives by it.
func (c *Connector) sends() bool {
	outgoing, _ := c.Extra.Get("outgoing")
	settings, ok := outgoing.(Settings)
	if !ok {
		return false
	}
	port, _ := settings.Get("zmq_port")
	n, ok := port.(int64)
	return ok && n > 0
}

// connector is the one that counts on the edge; nil where the file names none.
func (e *wire) connector() *Connector {
	for _, ref := range []*reference{e.input, e.output} {
		if ref != nil {
			return ref.connector
		}
	}
	return nil
}

// list reads the list edges.
func (w *wiring) list(n *node) {
	if n == nil {
		return
	}
	if n.kind != kindList {
		w.bad = true
		w.problemf(n.pos, "edges must be a list of {from, to}, not %s", describe(n))
		return
	}
	for _, item := range n.items {
		entry, ok := w.entry(item)
		if !ok {
			w.bad = true
			continue
		}
		if w.call(entry) {
			continue
		}
		wire := w.add(entry.ends, entry.pos)
		switch {
		case wire == nil:
		case wire.listed != nil:
			w.problemf(entry.pos, "the edge %s is listed twice, first on %s", entry.ends, wire.listed.pos.line(entry.pos))
		default:
			wire.listed, wire.pos, w.lists = entry, entry.pos, true
		}
	}
}

// call takes an entry of edges whose other end is the caller.
func (w *wiring) call(e *listed) bool {
	if _, isStage := w.ids[callerEnd]; isStage || e.from != callerEnd && e.to != callerEnd {
		return false
	}
	stage := e.from
	if e.from == callerEnd {
		stage = e.to
	}
	switch i := slices.IndexFunc(w.calls, func(other *listed) bool { return other.ends == e.ends }); {
	case i >= 0:
		w.problemf(e.pos, "the edge %s is listed twice, first on %s", e.ends, w.calls[i].pos.line(e.pos))
	case stage == callerEnd:
		w.problemf(e.pos, "an edge leads from the caller to itself")
	case w.known(stage, e.pos):
		w.calls = append(w.calls, e)
	}
	return true
}

// checkCalls refuses edges from and to the caller at stages that have none.
func (w *wiring) checkCalls(drafts []draft) {
	for _, c := range w.calls {
		for _, e := range w.order {
			switch {
			case e.to == c.to:
				w.problemf(c.pos, "the stage %s gets its input from other stages (such as %s): it has no edge from the caller", c.to, e.from)
			case e.from == c.from && !drafts[w.ids[c.from]].FinalOutput:
				w.problemf(c.pos, "the output of the stage %s goes to other stages (such as %s): say final_output: true for it to go to the caller, too", c.from, e.to)
			default:
				continue
			}
			break
		}
	}
}

// entry reads one entry of edges; the result is false if an end is missing.
func (w *wiring) entry(n *node) (*listed, bool) {
	e := &listed{pos: n.pos}
	if !w.closed(n, "an edge", w.edgeFields(e)) {
		return nil, false
	}
	for _, key := range []string{"from", "to"} {
		if n.get(key) == nil {
			w.problemf(n.pos, "the edge has no %s", key)
		}
	}
	if e.ours != nil {
		w.closed(e.ours, "the edge's omnibus settings", w.edgeOmnibusFields(e))
	}
	return e, e.from != "" && e.to != ""
}

// joins checks that a stage that joins has something to join, and finds stages that have no
// edges at all. Beside a list of edges that is a mistake, unless the stage says so.
func (w *wiring) joins(drafts []draft) {
	if w.bad {
		return
	}
	inputs, outputs := make(map[string]int), make(map[string]int)
	for _, e := range w.order {
		inputs[e.to]++
		outputs[e.from]++
	}
	for _, d := range drafts {
		if d.Join && inputs[d.ID] < 2 {
			w.problemf(d.joinPos, "join waits for several inputs, and the stage %s has %d", d.ID, inputs[d.ID])
		}
		switch {
		case len(drafts) == 1 || inputs[d.ID]+outputs[d.ID] > 0 || d.alone || slices.ContainsFunc(w.calls, func(e *listed) bool { return e.from == d.ID || e.to == d.ID }):
		case w.lists:
			w.problemf(d.Pos, "no edge leads to the stage %s or away from it: add one to edges, or say omnibus: {alone: true} if requests go to it and to the others side by side", d.ID)
		default:
			w.notef(d.Pos, "no edge leads to the stage %s or away from it: vLLM-Omni takes edges that a file leaves out from the model's code, this build does not", d.ID)
		}
	}
}
