package host

import (
	"maps"
	"math"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestDirectTotalsDoNotOverflow: a process cannot make the figures of lanes and edges overflow by its
// reports on a stream, neither while the stream lasts nor at its end.
func TestDirectTotalsDoNotOverflow(t *testing.T) {
	a := openTestHost(t, 8, func(t *bus.Task, d *bus.Delivery) error { return t.Forward(d) })
	r, df := a.openDirect(t)
	sess := df.producer.sess
	check := func(what string) {
		t.Helper()
		for i, e := range a.bus.Stats().Edges {
			if e.Deliveries < 0 || e.Direct < 0 || e.Bytes < 0 {
				t.Errorf("%s: edge %d: %+v", what, i, e)
			}
		}
		for _, l := range (inFlight{}).lanes(a.server.live()) {
			if l.Deliveries < 0 || l.Bytes < 0 {
				t.Errorf("%s: %+v", what, l)
			}
		}
	}
	for _, n := range []uint64{1, math.MaxInt64, math.MaxInt64 + 1, math.MaxUint64} {
		sess.direct.update(df, n, n)
		check("while it lasts")
	}
	if err := sess.streamed(&wire.Streamed{Source: df.producer.id, Deliveries: math.MaxUint64, Bytes: math.MaxUint64}); err != nil {
		t.Fatal(err)
	}
	check("at its end")
	r.Abort(nil)
}

// TestDirectTotalsForgetDepartedNodes: the totals of a departed node are removed. Those of a node that
// came after the snapshot stay.
func TestDirectTotalsForgetDepartedNodes(t *testing.T) {
	p, live := directPaths{totals: map[uint32]directTotals{1: {}, 2: {}, 5: {}}}, new(session)
	p.forgetDeparted(map[uint32]*session{2: live, 3: live})
	if left := slices.Sorted(maps.Keys(p.snapshot())); !slices.Equal(left, []uint32{2, 5}) {
		t.Errorf("%v are left, want those that live, 2, and that came after, 5", left)
	}
}
