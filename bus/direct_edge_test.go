package bus

import "testing"

// TestDirectPathNeedsAtMostOnce: a stream may take a direct path only if the host never has to
// repeat, drop or join its deliveries.
func TestDirectPathNeedsAtMostOnce(t *testing.T) {
	state := StageSpec{Remote: &Remote{}, State: StateRequest}
	for name, tc := range map[string]struct {
		from, to StageSpec
		edge     Edge
		direct   bool
	}{
		"state of the request":  {from: state, to: state, direct: true},
		"no repeats, no state":  {from: StageSpec{Remote: &Remote{}, State: StateNone, Attempts: -1}, to: state},
		"repeats without state": {from: state, to: StageSpec{Remote: &Remote{}, State: StateNone}},
		"stateless producer":    {from: StageSpec{Remote: &Remote{}, State: StateNone}, to: state},
		"replaying consumer":    {from: state, to: StageSpec{Remote: &Remote{}, State: StateRequest, Replay: true}},
		"replaying producer":    {from: StageSpec{Remote: &Remote{}, State: StateRequest, Replay: true}, to: state},
		"each to another":       {from: state, to: StageSpec{Remote: &Remote{Routing: RoundRobin}, State: StateNone, Attempts: -1}},
		"drop oldest":           {from: state, to: state, edge: Edge{Policy: DropOldest}},
		"fail when full":        {from: state, to: state, edge: Edge{Policy: Fail}, direct: true},
		"a join":                {from: state, to: StageSpec{Remote: &Remote{Join: true}, State: StateRequest}},
		"tensors on a GPU":      {from: state, to: state, edge: Edge{Tensors: TensorsPool}},
		"a stage of the host's": {from: state, to: StageSpec{Handle: func(*Task, *Delivery) error { return nil }, State: StateRequest}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.from.Name, tc.to.Name = "from", "to"
			tc.edge.From, tc.edge.To = "from", "to"
			g, err := compile(Pipeline{Stages: []StageSpec{tc.from, {Name: "beside", Remote: &Remote{}}, tc.to}, Edges: []Edge{tc.edge, {From: "beside", To: "to"}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := g.edges[0].direct(); got != tc.direct {
				t.Errorf("%s may take a direct path: %v, want %v", g.edges[0].name, got, tc.direct)
			}
		})
	}
}

// TestForwardedTensorsTakeNoDirectPath: a payload with tensors in GPU memory cannot be copied. Edges to which a stage
// may forward such a payload have no direct path, also behind further stages.
func TestForwardedTensorsTakeNoDirectPath(t *testing.T) {
	state := func(name string) StageSpec {
		return StageSpec{Name: name, Remote: &Remote{}, State: StateRequest}
	}
	g, err := compile(Pipeline{
		Stages: []StageSpec{state("read"), state("pass"), state("make"), state("beside")}, // not in topological order
		Edges: []Edge{
			{To: "make"},
			{From: "make", To: "pass", Tensors: TensorsPool},
			{From: "pass", To: "read"},
			{From: "read"},
			{From: "make", To: "beside"},
			{From: "beside"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{"->make": true, "make->pass": false, "pass->read": false, "read->": false, "make->beside": true, "beside->": true}
	for _, e := range g.edges {
		if got := e.direct(); got != want[e.name] {
			t.Errorf("%s may take a direct path: %v, want %v", e.name, got, want[e.name])
		}
	}
}
