package bus

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// graph is a checked pipeline: stages in topological order, edges in the
// order of the pipeline, then the edges of inputs and results that it does not list.
type graph struct {
	stages  []*stage
	edges   []*edge
	inputs  []*edge // from the caller
	results []*edge // to the caller
	byName  map[string]*stage

	inputPorts, resultPorts []Port
}

// compile checks p, reports all problems together, and builds the graph.
func compile(p Pipeline) (*graph, error) {
	g := &graph{byName: make(map[string]*stage)}
	var errs []error
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("%w: "+format, append([]any{ErrConfig}, args...)...))
	}
	if len(p.Stages) > MaxStages {
		bad("%d stages: a pipeline has up to %d", len(p.Stages), MaxStages)
	}
	for _, spec := range p.Stages {
		spec, err := spec.Checked()
		if err != nil {
			errs = append(errs, err)
		}
		if g.byName[spec.Name] != nil {
			bad("stage %q is listed twice", spec.Name)
			continue
		}
		st := newStage(spec)
		g.byName[spec.Name] = st
		g.stages = append(g.stages, st)
	}
	for _, e := range p.Edges {
		if err := g.connect(e); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 {
		errs = append(errs, g.addCallerEdges(), g.sort(), g.checkJoins(), g.checkTypes())
		g.markDevices()
	}
	return g, errors.Join(errs...)
}

// Checked returns the specification with its defaults, and the errors in it.
func (s StageSpec) Checked() (StageSpec, error) {
	s = s.withDefaults()
	return s, s.validate()
}

func (s StageSpec) withDefaults() StageSpec {
	setDefault(&s.Replicas, 1)
	setDefault(&s.MaxInflight, DefaultMaxInflight)
	setDefault(&s.BatchSize, 8)
	setDefault(&s.Attempts, 1)
	s.Attempts = max(s.Attempts, 0)
	return s
}

func setDefault[T int | int64](v *T, to T) {
	if *v == 0 {
		*v = to
	}
}

func (s StageSpec) validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("%w: stage %q: "+format, append([]any{ErrConfig, s.Name}, args...)...))
		}
	}
	kinds := 0
	for _, set := range []bool{s.Handle != nil, s.Join != nil, s.Batch != nil, s.Props != nil, s.Remote != nil} {
		if set {
			kinds++
		}
	}
	check(s.Name != "" && !strings.Contains(s.Name, "->") && !strings.Contains(s.Name, "/"), `a stage needs a name, without "->" and "/"`)
	check(nameable(s.Name, MaxStageName), "its name has %d bytes: use up to %d, of UTF-8", len(s.Name), MaxStageName)
	check(kinds == 1, "set exactly one of Handle, Join, Batch, Props and Remote, not %d", kinds)
	check(s.Replicas >= 1 && s.Replicas <= MaxInflight, "Replicas is %d: use 1 to %d", s.Replicas, MaxInflight)
	most := MaxInflight
	if s.Batch != nil { // its slots share one actor per replica
		most = MaxRequests
	}
	check(s.MaxInflight >= 1 && s.MaxInflight <= most, "MaxInflight is %d: use 1 to %d", s.MaxInflight, most)
	check(s.BatchSize >= 1 && s.BatchSize <= MaxWindow, "BatchSize is %d: use 1 to %d", s.BatchSize, MaxWindow)
	check(s.BatchWait >= 0, "BatchWait is %v: use 0 or more", s.BatchWait)
	check(s.State == StateNone || s.State == StateRequest, "State is %d: use StateNone or StateRequest", s.State)
	check(!s.Replay || s.State == StateRequest, "Replay needs StateRequest")
	check(!s.Replay || s.Handle != nil || s.Remote != nil, "Replay needs Handle or Remote: only there does the bus know what the stage has seen")
	check(s.End == nil || s.Props == nil, "End is not for Props: the actor receives the end of each stream itself")
	check(s.End == nil || s.Remote == nil, "End is not for Remote: the processes have their own")
	if r := s.Remote; r != nil {
		check(r.HandleTimeout >= 0 && r.FirstTimeout >= 0, "HandleTimeout %v and FirstTimeout %v: want 0 or more", r.HandleTimeout, r.FirstTimeout)
		check(r.FirstTimeout == 0 || r.FirstTimeout >= r.HandleTimeout && r.HandleTimeout > 0,
			"FirstTimeout %v is for stages with a HandleTimeout, which is %v, and no less than that", r.FirstTimeout, r.HandleTimeout)
	}
	if s.Remote != nil {
		check(s.Remote.Routing.Valid(), "unknown routing %d", s.Remote.Routing)
		check(s.Remote.Routing == Sticky || s.State == StateNone, "routing %v needs StateNone: a stage with state must see all of a request", s.Remote.Routing)
	}
	return errors.Join(errs...)
}

// connect adds one edge of the pipeline.
func (g *graph) connect(spec Edge) error {
	name := spec.From + "->" + spec.To
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: edge %s: "+format, append([]any{ErrConfig, name}, args...)...)
	}
	for _, end := range []string{spec.From, spec.To} {
		if end != "" && g.byName[end] == nil {
			return bad("there is no stage %q", end)
		}
	}
	setDefault(&spec.Window, DefaultWindow)
	switch {
	case spec.From == "" && spec.To == "":
		return bad("names no stage")
	case spec.From == spec.To:
		return bad("joins a stage to itself")
	case slices.ContainsFunc(g.edges, func(e *edge) bool { return e.name == name }):
		return bad("is listed twice")
	case spec.Window != Unbounded && (spec.Window < 1 || spec.Window > MaxWindow):
		return bad("Window is %d: use 1 to %d, or Unbounded", spec.Window, MaxWindow)
	case spec.WindowBytes < 0 || spec.WindowBytes > maxWindowBytes:
		return bad("WindowBytes is %d: use 0 for the default, or up to %d", spec.WindowBytes, maxWindowBytes)
	case !spec.Policy.Valid():
		return bad("unknown policy %d", spec.Policy)
	case spec.From == "" && spec.Policy == DropOldest:
		return bad("inputs cannot be dropped: the caller would not learn of it")
	case !spec.Tensors.Valid():
		return bad("unknown %v of tensors", spec.Tensors)
	case spec.TensorMinBytes < 0:
		return bad("TensorMinBytes is %d: use 0 or more", spec.TensorMinBytes)
	case spec.Tensors != TensorsDefault && spec.Connector != nil:
		return bad("Tensors is %v, and a connector carries the payloads, which knows no memory of GPUs", spec.Tensors)
	case spec.Connector != nil && (spec.From == "" || spec.To == ""):
		return bad("a connector carries payloads between two stages, not from or to the caller")
	}
	g.addEdge(&edge{name: name, spec: spec, path: pathOf(spec)}, g.byName[spec.From], g.byName[spec.To])
	return nil
}

// addEdge adds an edge between two stages; nil is the caller.
func (g *graph) addEdge(e *edge, from, to *stage) {
	e.index, e.from, e.to = len(g.edges), from, to
	g.edges = append(g.edges, e)
	if from != nil {
		from.out = append(from.out, e)
	} else {
		g.inputs = append(g.inputs, e)
	}
	if to != nil {
		e.in = len(to.in)
		to.in = append(to.in, e)
	} else {
		e.in = len(g.results)
		g.results = append(g.results, e)
	}
}

// addCallerEdges adds edges between the caller and the first and last stages that have none.
func (g *graph) addCallerEdges() error {
	var errs []error
	for _, st := range g.stages {
		if len(st.in) == 0 {
			errs = append(errs, g.connect(Edge{To: st.spec.Name}))
		}
		if len(st.out) == 0 {
			errs = append(errs, g.connect(Edge{From: st.spec.Name}))
		}
	}
	return errors.Join(errs...)
}

// sort puts the stages in topological order, or fails and names a cycle.
func (g *graph) sort() error {
	waits := make(map[*stage]int)
	var ready, sorted []*stage
	for _, st := range g.stages {
		for _, e := range st.in {
			if e.from != nil {
				waits[st]++
			}
		}
		if waits[st] == 0 {
			ready = append(ready, st)
		}
	}
	for len(ready) > 0 {
		st := ready[0]
		ready = ready[1:]
		st.index = len(sorted)
		sorted = append(sorted, st)
		for _, e := range st.out {
			if e.to == nil {
				continue
			}
			if waits[e.to]--; waits[e.to] == 0 {
				ready = append(ready, e.to)
			}
		}
	}
	if len(sorted) < len(g.stages) {
		return fmt.Errorf("%w: the edges form a cycle: %s", ErrConfig, g.cycle(waits))
	}
	g.stages = sorted
	return nil
}

// markDevices marks the edges whose payloads may have tensors in GPU memory: those that put tensors
// there, and those to which a stage may forward a payload of such an edge.
func (g *graph) markDevices() {
	for _, e := range g.inputs {
		e.device = e.spec.Tensors != TensorsDefault
	}
	for _, st := range g.stages {
		arrives := slices.ContainsFunc(st.in, func(e *edge) bool { return e.device })
		for _, e := range st.out {
			e.device = arrives || e.spec.Tensors != TensorsDefault
		}
	}
}

// cycle walks backwards along stages that are not sorted, until it finds one twice.
func (g *graph) cycle(waits map[*stage]int) string {
	at := slices.IndexFunc(g.stages, func(st *stage) bool { return waits[st] > 0 })
	var path []*stage
	for st := g.stages[at]; ; {
		if i := slices.Index(path, st); i >= 0 {
			path = append(path[i:], st)
			break
		}
		path = append(path, st)
		i := slices.IndexFunc(st.in, func(e *edge) bool { return e.from != nil && waits[e.from] > 0 })
		st = st.in[i].from
	}
	slices.Reverse(path)
	names := make([]string, len(path))
	for i, st := range path {
		names[i] = st.spec.Name
	}
	return strings.Join(names, " -> ")
}

// names lists the stages, for errors.
func (g *graph) names() string {
	names := make([]string, len(g.stages))
	for i, st := range g.stages {
		names[i] = st.spec.Name
	}
	return strings.Join(names, ", ")
}

func (g *graph) checkJoins() error {
	var errs []error
	for _, st := range g.stages {
		if st.spec.joins() && len(st.in) < 2 {
			errs = append(errs, fmt.Errorf("%w: stage %q joins, but has only one in-edge (%s): add an edge, or use Handle", ErrConfig, st.spec.Name, st.in[0].name))
		}
		if st.spec.joins() {
			errs = append(errs, g.checkBranches(st))
		}
	}
	return errors.Join(errs...)
}

func (s *StageSpec) joins() bool { return s.Join != nil || s.Remote != nil && s.Remote.Join }

// checkBranches refuses edges before a join that drop or reorder deliveries of one branch alone: the join pairs
// deliveries by their position in the branches.
func (g *graph) checkBranches(join *stage) error {
	var errs []error
	before := join.edgesBefore(nil)
	for _, e := range g.edges {
		does := e.displaces()
		if does == "" || !before[e] {
			continue
		}
		for other := range join.edgesBefore(e) {
			if other.from == nil { // another branch does not lead through the edge
				errs = append(errs, fmt.Errorf("%w: edge %s: %s of one branch before the join %q, which pairs the branches by place: it would pair them wrongly", ErrConfig, e.name, does, join.spec.Name))
				break
			}
		}
	}
	return errors.Join(errs...)
}

// displaces says how deliveries on the edge lose their position in the stream; empty: they keep it.
func (e *edge) displaces() string {
	switch {
	case e.spec.Policy == DropOldest:
		return "its policy drops deliveries"
	case e.from != nil && e.from.spec.Remote != nil && e.from.spec.Remote.Routing != Sticky:
		return fmt.Sprintf("the routing %v of stage %q reorders deliveries", e.from.spec.Remote.Routing, e.from.spec.Name)
	}
	return ""
}

// edgesBefore are the edges on the paths that lead to a stage, except for paths through the edge without.
func (st *stage) edgesBefore(without *edge) map[*edge]bool {
	all := make(map[*edge]bool)
	for next := []*stage{st}; len(next) > 0; {
		at := next[0]
		next = next[1:]
		for _, e := range at.in {
			if e != without && !all[e] {
				all[e] = true
				if e.from != nil {
					next = append(next, e.from)
				}
			}
		}
	}
	return all
}

// headroom is the part of a store that byte windows leave free, for alignment,
// unused extents, and fragmentation by payloads of different age.
const headroom = 4 // a quarter

// joinSpace is the part of an arena that is set aside for joins: joinBytes, or the default if it
// is 0; none in a graph without joins.
func (g *graph) joinSpace(joinBytes, arenaBytes int64) int64 {
	switch {
	case !slices.ContainsFunc(g.stages, func(st *stage) bool { return st.spec.joins() }):
		return 0
	case joinBytes == 0:
		return arenaBytes / 4
	}
	return joinBytes
}

// sizeWindows sets the byte window of every edge and checks that all windows
// together fit the store, so that a payload with credit always finds space. With
// overcommit, windows that the pipeline sets need not fit, and do not reduce the
// default windows.
func (g *graph) sizeWindows(arenaBytes, joinBytes int64, maxRequests int, overcommit bool) error {
	usable := arenaBytes - arenaBytes/headroom - joinBytes
	var fixed, shares int64
	for _, e := range g.edges {
		if e.spec.WindowBytes > 0 {
			fixed += e.spec.WindowBytes * e.holders(maxRequests)
		} else {
			shares += e.holders(maxRequests)
		}
	}
	left := usable - fixed
	if overcommit {
		left = usable
	}
	if left < 0 || (shares > 0 && left/shares < minWindowBytes) {
		return fmt.Errorf("%w: %s: give the store more bytes, or lower WindowBytes, MaxInflight or MaxRequests",
			ErrWindows, g.explainSize(arenaBytes, joinBytes, fixed, shares, maxRequests))
	}
	for _, e := range g.edges {
		e.windowBytes = e.spec.WindowBytes
		if e.windowBytes == 0 {
			e.windowBytes = left / shares &^ (payloadAlign - 1)
		}
		e.windowBytes = min(e.windowBytes, maxWindowBytes)
		e.window = uint64(e.spec.Window)
		if e.spec.Window == Unbounded {
			e.window = noWindow
		}
	}
	return nil
}

func (g *graph) explainSize(arena, join, fixed, shares int64, maxRequests int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "of %d bytes, %d are headroom and %d are set aside for joins; %d are set by WindowBytes", arena, arena/headroom, join, fixed)
	if shares > 0 {
		fmt.Fprintf(&b, ", and %d shares of at least %d are needed", shares, minWindowBytes)
	}
	b.WriteString(" (")
	for i, e := range g.edges {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%s for %d requests", e.name, e.holders(maxRequests))
	}
	b.WriteString(")")
	return b.String()
}
