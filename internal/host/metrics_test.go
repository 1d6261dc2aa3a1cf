package host

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// figures is a collector of a given status, without a running host.
type figures struct {
	collector
	status Status
}

func (f figures) Collect(to chan<- prometheus.Metric) { f.collectStatus(to, f.status) }

// TestTensorsOfProcesses: the figures of tensors are the sums over the host and all processes. Few
// hosts have figures of their own.
func TestTensorsOfProcesses(t *testing.T) {
	figures := figures{status: Status{Status: host.Status{Stats: bus.Stats{
		Tensors:        lane.Stats{Fallbacks: 1, Pool: lane.Sent{Messages: 10, Bytes: 100}},
		ProcessTensors: lane.Stats{Fallbacks: 2, Pool: lane.Sent{Messages: 20, Bytes: 200}, Open: 3},
	}}}}
	for name, want := range map[string]float64{
		"omnibus_tensor_fallbacks_total": 3, "omnibus_tensor_messages_total": 30, "omnibus_tensor_bytes_total": 300, "omnibus_tensor_open_messages": 3,
	} {
		r := prometheus.NewPedanticRegistry()
		r.MustRegister(figures)
		families, err := r.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var sum float64
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == name {
					sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
				}
			}
		}
		if sum != want {
			t.Errorf("%s is %v, want %v", name, sum, want)
		}
	}
}

// TestMetricNames checks the names against the conventions, and the label values for duplicates: a
// process that joins twice must not break the page.
func TestMetricNames(t *testing.T) {
	s := Status{Stages: []StageStatus{{Stage: "a"}}, Children: []ChildStatus{{Name: "a/0", Stage: "a"}, {Name: "a/1", Stage: "a"}}}
	s.Stats = bus.Stats{Stages: []bus.StageStats{{Name: "a"}}, Edges: []bus.EdgeStats{{To: "a"}, {From: "a", Connector: &connector.Health{}}}}
	s.Processes = []host.ProcessStats{{Node: 1, Name: "x\xff"}, {Node: 2, Name: "x\xff"}}
	s.Lanes = []host.LaneStatus{{From: 1, To: 2}, {From: 2, To: 1}}
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(figures{status: s}); err != nil {
		t.Fatal(err)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	described := make(chan *prometheus.Desc, 1000)
	figures{}.Describe(described)
	if len(families) != len(described) {
		t.Errorf("%d metrics are described and %d collected", len(described), len(families))
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	for _, f := range families { // a help text is read without the others beside it
		if strings.Contains(strings.ToLower(f.GetHelp()), "those") {
			t.Errorf("%s: the help leans on that of another: %q", f.GetName(), f.GetHelp())
		}
	}
}
