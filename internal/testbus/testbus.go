package testbus

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Open starts a bus. At the end of the test the bus is closed, and must be clean.
func Open(t testing.TB, p bus.Pipeline, opts bus.Options) *bus.Bus {
	t.Helper()
	if opts.Store.ArenaBytes == 0 {
		opts.Store = shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Heap}
	}
	b, err := bus.Open(t.Context(), p, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() {
		if err := b.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return b
}

// StreamOf begins a request, which is closed at the end of the test.
func StreamOf(t testing.TB, s Submitter) *bus.Request {
	t.Helper()
	r, err := s.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

// Receive reads a request's results as strings, to its end.
func Receive(t testing.TB, r *bus.Request) ([]string, error) {
	t.Helper()
	var got []string
	for {
		d, err := r.Recv(t.Context())
		if errors.Is(err, io.EOF) {
			return got, nil
		}
		if err != nil {
			return got, err
		}
		s, err := bus.Result[string](d)
		if err != nil {
			t.Fatalf("result: %v", err)
		}
		got = append(got, s)
		if err := d.Finish(nil); err != nil {
			t.Fatalf("finish: %v", err)
		}
	}
}

// Linear is a pipeline of stages in a row.
func Linear(stages ...bus.StageSpec) bus.Pipeline {
	p := bus.Pipeline{Stages: stages}
	for i := 1; i < len(stages); i++ {
		p.Edges = append(p.Edges, bus.Edge{From: stages[i-1].Name, To: stages[i].Name})
	}
	return p
}

// Upper is a stage function that returns its input in capitals.
func Upper(_ *bus.Task, in string) (string, error) { return strings.ToUpper(in), nil }

// MustReceive requires the results of a request.
func MustReceive(t *testing.T, r *bus.Request, want []string) {
	t.Helper()
	got, err := Receive(t, r)
	if err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %v, %v; want %v", got, err, want)
	}
}

// SendAll streams n numbered inputs into a new request.
func SendAll(t *testing.T, b Submitter, n int) *bus.Request {
	t.Helper()
	r := StreamOf(t, b)
	go func() {
		for i := range n {
			if r.Send(t.Context(), fmt.Sprint(i)) != nil {
				return
			}
		}
		_ = r.CloseSend(t.Context())
	}()
	return r
}

// Numbers are the results of a request of SendAll with n inputs.
func Numbers(n int) []string {
	var want []string
	for i := range n {
		want = append(want, fmt.Sprint(i))
	}
	return want
}

// Gate is a stage that announces each input on Entered, and passes it on after a receive from Leave.
type Gate struct {
	Entered chan string
	Leave   chan struct{}
}

// NewGate makes a closed gate.
func NewGate() *Gate {
	return &Gate{Entered: make(chan string, 1000), Leave: make(chan struct{}, 1000)}
}

// Windowed is a pipeline of a first stage and a gated second one, joined by e.
func Windowed(g *Gate, e bus.Edge) bus.Pipeline {
	e.From, e.To = "first", "second"
	return bus.Pipeline{
		Stages: []bus.StageSpec{bus.Stage("first", Upper), g.Stage("second")},
		Edges:  []bus.Edge{e},
	}
}

// WaitForStall waits until a producer waits on that edge, with at least that many
// deliveries in flight, and returns the stall.
func WaitForStall(t *testing.T, b *bus.Bus, edge string, deliveries int) bus.Stall {
	t.Helper()
	var found bus.Stall
	Await(t, func() bool {
		all := b.Stalls(0)
		i := slices.IndexFunc(all, func(s bus.Stall) bool { return s.Edge == edge && s.Deliveries >= deliveries })
		if i >= 0 {
			found = all[i]
		}
		return i >= 0
	})
	return found
}

// Stage is the stage of the gate.
func (g *Gate) Stage(name string) bus.StageSpec {
	return bus.Stage(name, func(t *bus.Task, in string) (string, error) {
		g.Entered <- in
		select {
		case <-g.Leave:
			return in, nil
		case <-t.Context().Done():
			return "", t.Context().Err()
		}
	})
}

// Concat is a join of two texts.
func Concat(name string) bus.StageSpec {
	return bus.Join2(name, func(_ *bus.Task, a, b string) (string, error) { return a + "+" + b, nil })
}

// Diamond is a pipeline of a stage, two stages behind it, and their join; edges replace those between the same stages.
func Diamond(src, left, right bus.StageSpec, edges ...bus.Edge) bus.Pipeline {
	all := map[string]bus.Edge{}
	var p bus.Pipeline
	p.Stages = []bus.StageSpec{src, left, right, Concat("join")}
	for _, e := range edges {
		all[e.From+e.To] = e
	}
	for _, ends := range [][2]string{{src.Name, left.Name}, {src.Name, right.Name}, {left.Name, "join"}, {right.Name, "join"}} {
		e := all[ends[0]+ends[1]]
		e.From, e.To = ends[0], ends[1]
		p.Edges = append(p.Edges, e)
	}
	return p
}

// Suffix is a stage that adds its name.
func Suffix(name string) bus.StageSpec {
	return bus.Stage(name, func(_ *bus.Task, in string) (string, error) { return in + name, nil })
}

// Submitter is a bus, or a node of one.
type Submitter interface {
	Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error)
}

// Remotes is p with remote stages.
func Remotes(p bus.Pipeline) bus.Pipeline {
	p.Stages = slices.Clone(p.Stages)
	for i, s := range p.Stages {
		if s.Remote == nil {
			p.Stages[i] = bus.StageSpec{
				Name: s.Name, Remote: &bus.Remote{Join: s.Join != nil}, Replicas: s.Replicas, MaxInflight: s.MaxInflight,
				State: s.State, Attempts: s.Attempts, Replay: s.Replay,
			}
		}
	}
	return p
}
