package bench

import (
	"strings"
	"testing"
)

// TestPeerTable: columns that no row has are left out, and all cells of a column are
// equally wide.
func TestPeerTable(t *testing.T) {
	report := PeerReport{Machine: Machine{Go: "go1", OS: "linux", Arch: "amd64", CPU: "CPU", Cores: 2, GOMAXPROCS: 2}, Commit: "abc", Rounds: 3, Busy: 2}
	report.Rows = []PeerRow{
		{"request", "µs", []PeerCell{{Column: ours, Median: 438.7, Factor: 1}, {Column: natsServer, Median: 164, Factor: 2.675}, {Column: grpcDirect, Median: 132, Factor: 3.324}}},
		{"idle", "MiB", []PeerCell{{Column: ours, Median: 87.15, Factor: 1}, {Column: natsServer, Median: 0.2549, Factor: 341.9}}},
		{"without", "µs", []PeerCell{{Column: natsServer, Median: 9.99}}},
	}
	report.Skipped = []Skip{{"python by zmq", "there is none"}}
	const want = `Commit abc, go1, linux/amd64, CPU, 2 cores, GOMAXPROCS 2. Medians of 3 rounds beside 2 that compute; in brackets omnibus / peer.

| µs a message | omnibus | grpc       | nats        |
|--------------|---------|------------|-------------|
| request      | 439     | 132 (3.32) | 164 (2.67)  |
| idle (MiB)   | 87.2    |            | 0.255 (342) |
| without      |         |            | 9.99        |

skipped python by zmq: there is none
`
	var got strings.Builder
	if err := report.WriteText(&got); err != nil {
		t.Fatal(err)
	}
	if got.String() != want {
		t.Errorf("got\n%s\nwant\n%s", &got, want)
	}
}

// TestPeerFactor: a factor is the median of the rounds' own, and not that of the medians.
func TestPeerFactor(t *testing.T) {
	first := &runner{column: ours, figures: []float64{10, 20, 60}}
	got := cellOf("peer", []float64{5, 40, 6}, first)
	if want := (PeerCell{Column: "peer", Median: 6, Least: 5, Factor: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := cellOf("peer", []float64{1}, &runner{column: "another", figures: []float64{2}}); got.Factor != 0 {
		t.Errorf("beside nothing of omnibus the factor is %v", got.Factor)
	}
}
