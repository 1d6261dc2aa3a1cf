package bus_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestAgainstModel sends random requests through random pipelines, whose
// stages panic now and then, and compares each stream of results with what a
// plain loop over the stages computes.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		requests := rapid.SliceOfN(drawInputs(), 1, 4).Draw(rt, "requests")
		b, err := bus.Open(t.Context(), m.pipeline(), bus.Options{
			MaxRequests: 6,
			Store:       shmstore.Options{ArenaBytes: modelArenaBytes, Memory: shmstore.Heap},
		})
		if err != nil {
			rt.Fatal(err)
		}
		wrong := make(chan error, len(requests))
		for _, inputs := range requests {
			go func() { wrong <- m.run(t.Context(), b, inputs) }()
		}
		for range requests {
			if err := <-wrong; err != nil {
				rt.Error(err)
			}
		}
		if err := b.Drain(t.Context()); err != nil {
			rt.Error(err)
		}
		if held := bus.HeldBytes(b); held != 0 {
			rt.Errorf("%d bytes are still held", held)
		}
		if err := b.Close(context.Background()); err != nil {
			rt.Error(err)
		}
	})
}

// Bounds of the model. A whole request fits the byte window of an edge, so that
// only the policy of the results drops or fails deliveries.
const (
	modelArenaBytes = 16 << 20
	modelSteps      = 3
	modelInputs     = 8
	modelInputBytes = 2000
	modelExpands    = 2    // stages that turn one input into up to two
	modelStream     = 1024 // no stream is longer
	modelAttempts   = 16   // no stage needs more
)

// drawInputs draws the inputs of one request: none, or some, of which some
// travel inline.
func drawInputs() *rapid.Generator[[]string] {
	return rapid.Custom(func(t *rapid.T) []string {
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 100), rapid.IntRange(0, modelInputBytes)), 0, modelInputs).Draw(t, "sizes")
		var inputs []string
		for i, size := range sizes {
			inputs = append(inputs, strings.Repeat(string(rune('a'+i)), size))
		}
		return inputs
	})
}

// kind is the way in which a stage handles its input.
type kind int

const (
	relays  kind = iota // one output for each input
	batches             // the same, several at a time
	keeps               // the same, later, on other goroutines
	counts              // the same, with state that a replay restores
	totals              // the same, and one more at the end
	expands             // none to two outputs
	joins
)

// modelStage is one drawn stage.
type modelStage struct {
	name   string
	kind   kind
	from   []string // the stages before it; "": the caller
	panics bool
	slots  [2]int // replicas, and requests in each
}

// model is a drawn pipeline, which it can run and compute.
type model struct {
	stages []modelStage // each after its predecessors
	edges  []bus.Edge
	sides  map[string]bool // stages in the branches of diamonds, and their joins: no edge to those may drop

	mu      sync.Mutex
	tripped map[string]bool
}

func drawModel(t *rapid.T) *model {
	m := &model{tripped: make(map[string]bool), sides: make(map[string]bool)}
	ends := []string{""} // stages without a consumer
	for range rapid.IntRange(1, modelSteps).Draw(t, "steps") {
		i := rapid.IntRange(0, len(ends)-1).Draw(t, "end")
		end := ends[i]
		ends = slices.Delete(ends, i, i+1)
		switch rapid.SampledFrom([]string{"append", "fork", "diamond"}).Draw(t, "step") {
		case "append":
			ends = append(ends, m.add(t, m.drawKind(t), end))
		case "fork":
			ends = append(ends, m.add(t, m.drawKind(t), end), m.add(t, m.drawKind(t), end))
		case "diamond":
			join := m.add(t, joins, m.branch(t, end), m.branch(t, end))
			m.sides[join] = true
			ends = append(ends, join)
		}
	}
	for _, st := range m.stages {
		for _, from := range st.from {
			m.drawEdge(t, from, st.name)
		}
	}
	for _, end := range ends {
		m.drawEdge(t, end, "")
	}
	return m
}

func (m *model) add(t *rapid.T, k kind, from ...string) string {
	st := modelStage{name: fmt.Sprintf("s%d", len(m.stages)), kind: k, from: from, panics: k != keeps && rapid.Bool().Draw(t, "panics")}
	for i := range st.slots {
		st.slots[i] = rapid.IntRange(1, 2).Draw(t, "slots")
	}
	m.stages = append(m.stages, st)
	return st.name
}

func (m *model) drawKind(t *rapid.T) kind {
	k := kind(rapid.IntRange(int(relays), int(expands)).Draw(t, "kind"))
	expanding := slices.Collect(m.ofKind(expands))
	if k == expands && len(expanding) == modelExpands {
		return relays
	}
	return k
}

func (m *model) ofKind(k kind) func(yield func(modelStage) bool) {
	return func(yield func(modelStage) bool) {
		for _, st := range m.stages {
			if st.kind == k && !yield(st) {
				return
			}
		}
	}
}

// branch is one side of a diamond, whose sides must have the same number of outputs.
func (m *model) branch(t *rapid.T, from string) string {
	for range rapid.IntRange(1, 2).Draw(t, "length") {
		from = m.add(t, kind(rapid.IntRange(int(relays), int(counts)).Draw(t, "kind")), from)
		m.sides[from] = true
	}
	return from
}

func (m *model) stage(name string) modelStage {
	return m.stages[slices.IndexFunc(m.stages, func(st modelStage) bool { return st.name == name })]
}

func (m *model) drawEdge(t *rapid.T, from, to string) {
	e := bus.Edge{From: from, To: to, Window: rapid.SampledFrom([]int{1, 2, 3, 4, bus.Unbounded}).Draw(t, "window")}
	e.Policy = bus.Policy(rapid.IntRange(int(bus.Block), int(bus.DropOldest)).Draw(t, "policy"))
	switch {
	case (from == "" || m.sides[to]) && e.Policy == bus.DropOldest: // refused: the caller, or the join, would not know
		e.Policy = bus.Block
	case e.Policy == bus.Fail:
		e.Window = bus.Unbounded
	case e.Policy == bus.DropOldest && to == "" && !m.stage(from).panics:
		e.Window = max(e.Window, 2) // one is for the end of the stream
	case e.Policy == bus.DropOldest:
		e.Window = modelStream
	}
	m.edges = append(m.edges, e)
}

// hashOf is a hash of a stage and its input, for decisions that do not depend on the run.
func hashOf(st modelStage, in string) uint32 {
	h := fnv.New32a()
	_, _ = io.WriteString(h, st.name+in) // never fails
	return h.Sum32() >> 8
}

// outputs are the outputs of a stage for its n-th input. b is the input of the
// other branch of a join.
func (st modelStage) outputs(n int, in, b string) []string {
	switch st.kind {
	case counts, totals:
		return []string{fmt.Sprint(in, st.name, n)}
	case joins:
		return []string{fmt.Sprintf("%s&%08x", in, hashOf(st, b))}
	case expands:
		return []string{in + st.name + "x", in + st.name + "y"}[:hashOf(st, in)%3]
	default:
		return []string{in + st.name}
	}
}

// compute returns the expected stream of each edge to the caller.
func (m *model) compute(inputs []string) map[string][]string {
	streams := map[string][]string{"": inputs}
	for _, st := range m.stages {
		var out []string
		for n, in := range streams[st.from[0]] {
			other := ""
			if st.kind == joins {
				other = streams[st.from[1]][n]
			}
			out = append(out, st.outputs(n, in, other)...)
		}
		if st.kind == totals {
			out = append(out, fmt.Sprint(st.name, len(streams[st.from[0]])))
		}
		streams[st.name] = out
	}
	results := make(map[string][]string)
	for _, e := range m.edges {
		if e.To == "" {
			results[e.From+"->"] = streams[e.From]
		}
	}
	return results
}

// run sends one request and compares its results, stream by stream. Dropped
// results leave a gap, of the size that the next delivery has in Dropped.
func (m *model) run(ctx context.Context, b testbus.Submitter, inputs []string) error {
	want := m.compute(inputs)
	r, err := b.Stream(ctx)
	if err != nil {
		return err
	}
	sent := make(chan error, 1)
	go func() {
		for _, in := range inputs {
			if err := r.Send(ctx, in); err != nil {
				sent <- err
				return
			}
		}
		sent <- r.CloseSend(ctx)
	}()
	at := make(map[string]int)
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		got, err := bus.Result[string](d)
		if err != nil {
			return err
		}
		place := at[d.Edge] + int(d.Dropped)
		if all := want[d.Edge]; place >= len(all) || got != all[place] {
			r.Close()
			return fmt.Errorf("edge %s, place %d of %d: unexpected %q", d.Edge, place, len(all), got)
		}
		at[d.Edge] = place + 1
	}
	for edge, all := range want {
		if at[edge] != len(all) {
			return fmt.Errorf("edge %s: %d results of %d", edge, at[edge], len(all))
		}
	}
	return errors.Join(<-sent, r.Err())
}
