package load

import (
	"fmt"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// fewCells are the cells of a plain run.
const fewCells = 3

// TestLoad runs the matrix of a seed, and with -load.for the matrices of the next seeds for that time.
func TestLoad(t *testing.T) {
	pythontest.Interpreter(t)
	if *cellFlag >= 0 {
		cells, _ := matrix(*seedFlag)
		if *cellFlag >= len(cells) {
			t.Fatalf("seed %d has %d cells", *seedFlag, len(cells))
		}
		runCell(t, *seedFlag, *cellFlag, &cells[*cellFlag])
		return
	}
	began := time.Now()
	for seed := *seedFlag; ; seed++ {
		cells, excluded := matrix(seed)
		t.Logf("seed %d: %d cells; %d of %d pairs are excluded", seed, len(cells), len(excluded), len(allPairs().list))
		for i := range cells {
			if *forFlag == 0 && i == fewCells || *forFlag > 0 && time.Since(began) > *forFlag {
				t.Logf("%d of %d cells of seed %d: %d pairs are not covered", i, len(cells), seed, uncovered(cells[:i], excluded))
				return
			}
			runCell(t, seed, i, &cells[i])
		}
		if *forFlag == 0 {
			return
		}
	}
}

func uncovered(cells []cell, excluded []pair) int {
	open := allPairs()
	open.remove(excluded...)
	for i := range cells {
		open.remove(cells[i].covered(&open)...)
	}
	return len(open.list)
}

// runCell runs one cell as a subtest.
func runCell(t *testing.T, seed uint64, number int, c *cell) {
	t.Run(fmt.Sprintf("%d/%d", seed, number), func(t *testing.T) {
		began := time.Now()
		r := newRun(t, c, seed<<12|uint64(number), c.requests(*requestsFlag))
		if err := r.do(); err != nil {
			t.Errorf("%v\nthe cell: %v\nits files: %s\nagain: go test ./internal/load -run '^TestLoad$' -count=1 -v "+
				"-load.seed %d -load.cell %d -load.requests %d", err, c, r.dir, seed, number, *requestsFlag)
			return
		}
		took := time.Since(began).Round(time.Millisecond)
		t.Logf("%v: %d requests in %v: %v", c, len(r.checker.plans), took, r.checker.count)
	})
}

// requests is how many requests a cell has, where a cell with small payloads has n.
func (c *cell) requests(n int) int {
	if c[dimSize] == sizeLarge {
		n /= 4
	}
	return max(n, 1)
}
