package bench

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	tests := []struct {
		name   string
		values []float64
		q      float64
		want   float64
	}{
		{"nothing", nil, 0.5, math.NaN()},
		{"one", []float64{7}, 0.25, 7},
		{"odd", []float64{9, 1, 5}, 0.5, 5},
		{"even", []float64{4, 1, 2, 3}, 0.5, 2.5},
		{"lower quartile", []float64{5, 4, 3, 2, 1}, 0.25, 2},
		{"between", []float64{0, 10}, 0.99, 9.9},
		{"least", []float64{3, 2, 1}, 0, 1},
		{"greatest", []float64{3, 2, 1}, 1, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := quantile(tt.values, tt.q)
			if got != tt.want && !(math.IsNaN(got) && math.IsNaN(tt.want)) {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
	values := []float64{3, 1, 2}
	if median(values); !cmp.Equal(values, []float64{3, 1, 2}) {
		t.Errorf("median reordered its argument: %v", values)
	}
}

func TestSummarise(t *testing.T) {
	tests := []struct {
		name    string
		metric  metric
		samples []sample
		want    Result
	}{
		{
			name:    "no baseline, no target",
			metric:  metric{unit: "ns"},
			samples: []sample{{ours: 3}, {ours: 1}, {ours: 2}},
			want:    Result{Value: 2, Unit: "ns", Rounds: 3},
		},
		{
			// The rounds of the smallest times of either side, which need not
			// be the same round.
			name:    "best and speed",
			metric:  metric{target: speedOf(4), speed: true},
			samples: []sample{{2, 8}, {1, 16}, {4, 4}, {2, 8}, {2, 8}},
			want: Result{
				Value: 1, Baseline: new(4.0), Ratio: new(0.25), RatioLow: new(0.25), RatioHigh: new(0.25), Speed: new(4.0),
				Target: new(4.0), TargetOf: "speed", Met: new(true), Rounds: 5,
			},
		},
		{
			name:    "speed missed",
			metric:  metric{target: speedOf(4.01), speed: true},
			samples: []sample{{1, 4}},
			want: Result{
				Value: 1, Baseline: new(4.0), Ratio: new(0.25), RatioLow: new(0.25), RatioHigh: new(0.25), Speed: new(4.0),
				Target: new(4.01), TargetOf: "speed", Met: new(false), Rounds: 1,
			},
		},
		{
			name:    "value missed",
			metric:  metric{target: valueUpTo(60)},
			samples: []sample{{ours: 61}},
			want:    Result{Value: 61, Target: new(60.0), TargetOf: "value", Met: new(false), Rounds: 1},
		},
		{
			name:    "on the target",
			metric:  metric{target: valueUpTo(60)},
			samples: []sample{{ours: 60}},
			want:    Result{Value: 60, Target: new(60.0), TargetOf: "value", Met: new(true), Rounds: 1},
		},
		{
			name:    "none, but for the runtime",
			metric:  metric{target: valueUpTo(0)},
			samples: []sample{{ours: 0.004}},
			want:    Result{Value: 0.004, Target: new(0.0), TargetOf: "value", Met: new(true), Rounds: 1},
		},
		{
			name:    "some",
			metric:  metric{target: valueUpTo(0)},
			samples: []sample{{ours: 0.01}},
			want:    Result{Value: 0.01, Target: new(0.0), TargetOf: "value", Met: new(false), Rounds: 1},
		},
		{
			name:    "a target without a baseline",
			metric:  metric{target: speedOf(2), speed: true},
			samples: []sample{{ours: 1}},
			want:    Result{Value: 1, Rounds: 1},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Name = tt.name
			if diff := cmp.Diff(tt.want, summarise(tt.name, tt.metric, tt.samples)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestWriteText(t *testing.T) {
	r := Report{
		Machine: Machine{Go: "go1.26", OS: "linux", Arch: "amd64", CPU: "Some CPU", Cores: 4, GOMAXPROCS: 2},
		Quick:   true,
		Results: []Result{
			summarise("a/long/name/of/a/figure", metric{unit: "ns", target: speedOf(1.2), speed: true}, []sample{{1234.5, 1000}, {12345, 10000}}),
			summarise("fast", metric{unit: "µs", target: speedOf(20), speed: true}, []sample{{1, 10}, {1, 40}, {1, 20}, {1, 20}, {1, 20}}),
			summarise("µ", metric{unit: "µs", target: valueUpTo(0.1)}, []sample{{ours: 0.126}}),
			summarise("plain", metric{unit: "KiB"}, []sample{{ours: -32}}),
		},
		Skipped: []Skip{{"big", "needs more"}},
	}
	const want = `go1.26, linux/amd64, Some CPU, 4 cores, GOMAXPROCS 2, quick

NAME                         OURS  BASELINE  UNIT  RATIO   QUARTILES     TARGET    MET  ROUNDS
a/long/name/of/a/figure      1234      1000  ns     0.81x  0.81–0.81x    ≥ 1.2x    no   2
fast                            1        10  µs    10.00x  20.00–20.00x  ≥ 20x     no   5
µ                            0.13         -  µs        -   -             ≤ 0.1 µs  no   1
plain                         -32         -  KiB       -   -             -         -    1
skipped big: needs more
`
	var out bytes.Buffer
	if err := r.WriteText(&out); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestJSON: the figures that a file gets, one in a line, keep their names.
func TestJSON(t *testing.T) {
	for want, r := range map[string]Result{
		`{"name":"all","value":1,"unit":"ns","baseline":2,"ratio":0.5,"ratio_low":0.5,"ratio_high":0.5,"speed":2,"target":2,"target_of":"speed","met":true,"rounds":1}`: summarise("all", metric{unit: "ns", target: speedOf(2), speed: true}, []sample{{1, 2}}),
		`{"name":"least","value":1,"unit":"ns","baseline":null,"ratio":null,"ratio_low":null,"ratio_high":null,"target":null,"met":null,"rounds":1}`:                    summarise("least", metric{unit: "ns"}, []sample{{ours: 1}}),
	} {
		got, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}
