package bus

import "testing"

// TestOnlyOnceGoesDirect: a stream may go past the host only where nothing of it
// would ever be repeated, dropped or joined there.
func TestOnlyOnceGoesDirect(t *testing.T) {
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
		"a stage of the host's": {from: state, to: StageSpec{Handle: func(*Task, *Delivery) error { return nil }, State: StateRequest}},
	} {
		t.Run(name, func(t *testing.T) {
			tc.from.Name, tc.to.Name = "from", "to"
			tc.edge.From, tc.edge.To = "from", "to"
			g, err := compile(Pipeline{Stages: []StageSpec{tc.from, {Name: "beside", Remote: &Remote{}}, tc.to}, Edges: []Edge{tc.edge, {From: "beside", To: "to"}}})
			if err != nil {
				t.Fatal(err)
			}
			if got := g.edges[0].once(); got != tc.direct {
				t.Errorf("%s may go past the host: %v, want %v", g.edges[0].name, got, tc.direct)
			}
		})
	}
}
