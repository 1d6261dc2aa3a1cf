package bus

import "testing"

// TestRetainedBytesComeBack: a delivery counts as kept for a replay from the return of its place in the window to
// the return of its bytes, which come back with the payload or before it.
func TestRetainedBytesComeBack(t *testing.T) {
	const cost = 192
	for name, bytesBack := range map[string]func(*Delivery){
		"with the payload":   (*Delivery).giveBack,
		"before the payload": func(d *Delivery) { d.Control().Spend(true)(); d.giveBack() },
	} {
		t.Run(name, func(t *testing.T) {
			f := &flow{edge: &edge{window: 2, windowBytes: 2*cost - 1}}
			d := &Delivery{flow: f, cost: cost, credit: oneDelivery | cost}
			f.used.Store(d.credit)
			want := func(when string, used uint64, retained int64, outgrown bool) {
				t.Helper()
				if f.used.Load() != used || f.retained.Load() != retained || f.outgrown(cost) != outgrown {
					t.Errorf("%s: %#x of the window is used, %d bytes are retained, outgrown %v; want %#x, %d, %v",
						when, f.used.Load(), f.retained.Load(), f.outgrown(cost), used, retained, outgrown)
				}
			}
			want("under way", oneDelivery|cost, 0, false)
			for range 2 { // a replay keeps it again
				d.Control().Spend(false)()
				want("retained", cost, cost, true)
			}
			bytesBack(d)
			want("given back", 0, 0, false)
		})
	}
}
