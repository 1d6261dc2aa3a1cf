package bench

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPeerTable: columns that no row has are left out, and all cells of a column are
// equally wide.
func TestPeerTable(t *testing.T) {
	report := Table{Machine: Machine{Go: "go1", OS: "linux", Arch: "amd64", CPU: "CPU", Cores: 2, GOMAXPROCS: 2}, Commit: "abc", Rounds: 3, Busy: 2}
	report.Rows = []Row{
		{"request", "µs", []Cell{{Column: ours, Median: 438.7, Factor: 1}, {Column: natsServer, Median: 164, Factor: 2.675}, {Column: grpcDirect, Median: 132, Factor: 3.324}}},
		{"idle", "MiB", []Cell{{Column: ours, Median: 87.15, Factor: 1}, {Column: natsServer, Median: 0.2549, Factor: 341.9}}},
		{"without", "µs", []Cell{{Column: natsServer, Median: 9.99}}},
		{"tiny", "µs", []Cell{{Column: ours, Median: 0.00342}, {Column: natsServer, Median: 0}}},
	}
	report.Skipped = []Skip{{"python by zmq", "there is none"}}
	const want = `Commit abc, go1, linux/amd64, CPU, 2 cores, GOMAXPROCS 2. Medians of 3 rounds beside 2 computing processes; in brackets omnibus / peer.

| µs a message | omnibus | grpc       | nats        |
|--------------|---------|------------|-------------|
| request      | 439     | 132 (3.32) | 164 (2.67)  |
| idle (MiB)   | 87.2    |            | 0.255 (342) |
| without      |         |            | 9.99        |
| tiny         | 0.0034  |            | 0.00        |

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

// TestPeerFactor: a factor is the median of the factors of the rounds, and not the factor of the medians.
func TestPeerFactor(t *testing.T) {
	first := &runner{column: ours, figures: []float64{10, 20, 60}}
	got := cellOf("peer", []float64{5, 40, 6}, first)
	if want := (Cell{Column: "peer", Median: 6, Least: 5, Factor: 2}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := cellOf("peer", []float64{0, 40, 0}, first); got.Factor != 0.5 || got.Median != 0 {
		t.Errorf("beside rounds without a figure: %+v", got)
	}
	if got := cellOf("peer", []float64{1}, &runner{column: "another", figures: []float64{2}}); got.Factor != 0 {
		t.Errorf("beside nothing of omnibus the factor is %v", got.Factor)
	}
}

// TestRoundOrder checks that each side follows every other equally often.
func TestRoundOrder(t *testing.T) {
	for n := 1; n <= 12; n++ {
		behind := make(map[[2]int]int)
		for round := range 2 * n {
			order := roundOrder(n, round)
			for i, column := range order[1:] {
				behind[[2]int{order[i], column}]++
			}
			if slices.Sort(order); !slices.Equal(order, firstInts(n)) {
				t.Fatalf("%d run in a round, want each of %d once", order, n)
			}
		}
		for a := range n {
			for b := range n {
				if want := 2; a != b && behind[[2]int{a, b}] != want {
					t.Errorf("of %d, %d ran %d times behind %d, want %d", n, b, behind[[2]int{a, b}], a, want)
				}
			}
		}
	}
}

func firstInts(n int) (all []int) {
	for i := range n {
		all = append(all, i)
	}
	return all
}

// TestNames checks that rows and figures can be told apart, and rows chosen by their names.
func TestNames(t *testing.T) {
	names := slices.Concat(Names(), NamesGPU())
	for i, name := range names {
		if slices.Index(names, name) != i {
			t.Errorf("%s is there twice", name)
		}
	}
	for _, name := range Names() {
		if strings.ContainsAny(name, " \t") || regexp.QuoteMeta(name) != name {
			t.Errorf("%q is no name to type into a shell and a regular expression", name)
		}
	}
}

// TestRowsAreDocumented: the package's documentation describes each row and each column.
func TestRowsAreDocumented(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range peerRows() {
		kind, _, _ := strings.Cut(r.name, "/")
		names := []string{kind}
		for _, c := range r.contenders {
			column, _, _ := strings.Cut(c.column, " ")
			names = append(names, column)
		}
		for _, name := range names {
			if !strings.Contains(string(doc), "\n//\t"+name+"  ") {
				t.Errorf("%s: doc.go does not describe %s", r.name, name)
			}
		}
	}
}

// TestColumns: each column of a row is among those that a table shows.
func TestColumns(t *testing.T) {
	for _, r := range peerRows() {
		var cells []Cell
		for _, c := range r.contenders {
			cells = append(cells, Cell{Column: c.column, Median: 1})
		}
		if got := (Table{Rows: []Row{{Cells: cells}}}).columns(); len(got) != len(cells) {
			t.Errorf("%s has %d columns, and the table shows %q", r.name, len(cells), got)
		}
	}
}
