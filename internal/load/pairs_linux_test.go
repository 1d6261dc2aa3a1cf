package load

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// A pair is two values of two dimensions, the lower one first.
type pair struct {
	a, b   dim
	va, vb string
}

// A pairSet holds pairs; list has them in an order that is the same in each run.
type pairSet struct {
	list []pair
	has  map[pair]bool
}

func allPairs() (all pairSet) {
	all.has = make(map[pair]bool)
	for b := range dimCount {
		for a := range b {
			for _, va := range dimensions[a].values {
				for _, vb := range dimensions[b].values {
					p := pair{a, b, va, vb}
					all.list = append(all.list, p)
					all.has[p] = true
				}
			}
		}
	}
	return all
}

func (s *pairSet) remove(all ...pair) {
	for _, p := range all {
		delete(s.has, p)
	}
	s.list = slices.DeleteFunc(s.list, func(p pair) bool { return !s.has[p] })
}

// pairsAt lists the pairs of the set that a cell has with a dimension and the others that are chosen.
func (c *cell) pairsAt(s *pairSet, d dim) (all []pair) {
	for other := range dimCount {
		p := pair{min(d, other), max(d, other), c[min(d, other)], c[max(d, other)]}
		if other != d && s.has[p] {
			all = append(all, p)
		}
	}
	return all
}

// covered lists the pairs of the set that a cell has.
func (c *cell) covered(s *pairSet) (all []pair) {
	for d := range dimCount {
		for _, p := range c.pairsAt(s, d) {
			if p.a == d {
				all = append(all, p)
			}
		}
	}
	return all
}

// candidates is how many cells are drawn for each cell of the matrix.
const candidates = 20

// matrix draws cells that cover every pair that the rules allow, cells with the most new pairs
// first. It also returns the pairs that no allowed cell has.
func matrix(seed uint64) (cells []cell, excluded []pair) {
	rng := rand.New(rand.NewPCG(seed, 0))
	open := allPairs()
	for len(open.list) > 0 {
		var best cell
		var most []pair
		for range candidates {
			p := open.list[rng.IntN(len(open.list))]
			c := cell{}
			c[p.a], c[p.b] = p.va, p.vb
			if !c.complete(rng, &open) {
				excluded = append(excluded, p)
				open.remove(p)
				break
			}
			if covered := c.covered(&open); len(covered) > len(most) {
				best, most = c, covered
			}
		}
		if most != nil {
			cells = append(cells, best)
			open.remove(most...)
		}
	}
	return cells, excluded
}

// complete chooses the missing values, in a random order of the dimensions: of each dimension the
// value that covers the most open pairs. It reports whether the rules allow a cell with the values
// that were chosen before.
func (c *cell) complete(rng *rand.Rand, open *pairSet) bool {
	if !c.allowed() {
		return false
	}
	var missing []dim
	for _, d := range rng.Perm(int(dimCount)) {
		if c[d] == "" {
			missing = append(missing, dim(d))
		}
	}
	return c.fill(missing, rng, open)
}

func (c *cell) fill(missing []dim, rng *rand.Rand, open *pairSet) bool {
	if len(missing) == 0 {
		return true
	}
	d := missing[0]
	values := slices.Clone(dimensions[d].values)
	rng.Shuffle(len(values), func(i, j int) { values[i], values[j] = values[j], values[i] })
	worth := make(map[string]int)
	for _, c[d] = range values {
		worth[c[d]] = len(c.pairsAt(open, d))
	}
	slices.SortStableFunc(values, func(a, b string) int { return worth[b] - worth[a] })
	for _, c[d] = range values {
		if c.allowed() && c.fill(missing[1:], rng, open) {
			return true
		}
	}
	c[d] = ""
	return false
}

// TestMatrixCoversPairs counts the pairs independently: each is in an allowed cell, or the rules
// exclude all cells that have it.
func TestMatrixCoversPairs(t *testing.T) {
	for seed := range uint64(3) {
		cells, excluded := matrix(seed)
		for i := range cells {
			if !cells[i].allowed() {
				t.Errorf("seed %d, cell %d is excluded: %v", seed, i, &cells[i])
			}
		}
		for _, p := range allPairs().list {
			has := slices.ContainsFunc(cells, func(c cell) bool { return c[p.a] == p.va && c[p.b] == p.vb })
			if out := slices.Contains(excluded, p); has == out {
				t.Errorf("seed %d: %v is in a cell: %v; excluded: %v", seed, p, has, out)
			}
		}
		if len(cells) > 250 {
			t.Errorf("seed %d takes %d cells", seed, len(cells))
		}
		t.Logf("seed %d: %d cells, %d pairs excluded", seed, len(cells), len(excluded))
	}
}

// TestMatrixOfASeed: the same seed gives the same cells, so that a number names a cell.
func TestMatrixOfASeed(t *testing.T) {
	one, _ := matrix(7)
	two, _ := matrix(7)
	if other, _ := matrix(8); !slices.Equal(one, two) || slices.Equal(one, other) {
		t.Error("cells do not depend on the seed, or not only on it")
	}
}

// TestEachRuleExcludes: each rule excludes at least one cell.
func TestEachRuleExcludes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, r := range rules {
		met := false
		for range 100_000 {
			var c cell
			for d := range dimCount {
				c[d] = dimensions[d].values[rng.IntN(len(dimensions[d].values))]
			}
			if met = r.excludes(&c); met {
				break
			}
		}
		if !met {
			t.Errorf("no cell is excluded because %s", r.reason)
		}
	}
}
