package codec

import "testing"

// The context of a coefficient is classed from its five neighbours, each with
// its weight, two of the frame itself and three of the frame before.
func TestContext(t *testing.T) {
	for _, c := range []struct {
		name            string
		before, current map[int]int32 // levels by index
		want            int
	}{
		{"silence", nil, nil, 0},
		{"one below", nil, map[int]int32{4: 2}, 2},
		{"two below", nil, map[int]int32{3: -4}, 2},
		{"same place before", map[int]int32{5: -2}, nil, 2},
		{"one lower before", map[int]int32{4: 4}, nil, 2},
		{"one higher before", map[int]int32{6: 4}, nil, 2},
		{"out of reach", map[int]int32{3: 9, 7: 9}, map[int]int32{2: 9}, 0},
		{"sum of all", map[int]int32{4: 1, 5: 1, 6: 1}, map[int]int32{3: 1, 4: 1}, 3},
		{"half powers of two", nil, map[int]int32{4: 6}, 5},
		{"largest", map[int]int32{4: maxLevel, 5: maxLevel, 6: maxLevel}, map[int]int32{3: maxLevel, 4: -maxLevel}, contexts - 1},
	} {
		const hop, at = 16, 5
		var l lane
		l.reset(hop)
		for k := range hop {
			l.set(k, c.before[k])
		}
		l.advance()
		for k := range at {
			l.set(k, c.current[k])
		}
		if got := l.context(at); got != c.want {
			t.Errorf("%s: context %d, want %d", c.name, got, c.want)
		}
	}
}
