package bus

import "testing"

// TestRetainedBytesComeBack: the bytes of a delivery count as retained for a replay from the return of its credit for
// one delivery to the return of its credit for the bytes, which comes with the release of the payload or before it.
func TestRetainedBytesComeBack(t *testing.T) {
	const cost = 192
	for name, bytesBack := range map[string]func(*Delivery){
		"with the payload":   (*Delivery).release,
		"before the payload": func(d *Delivery) { d.Control().Spend(true)(); d.release() },
	} {
		t.Run(name, func(t *testing.T) {
			f := &flow{edge: &edge{window: 2, windowBytes: 2*cost - 1}}
			d := &Delivery{flow: f, cost: cost, credit: oneDelivery | cost}
			f.used.Store(d.credit)
			want := func(when string, used uint64, retained int64, exceeds bool) {
				t.Helper()
				if f.used.Load() != used || f.retained.Load() != retained || f.exceedsReplayWindow(cost) != exceeds {
					t.Errorf("%s: %#x of the window is used, %d bytes are retained, the window is exceeded: %v; want %#x, %d, %v",
						when, f.used.Load(), f.retained.Load(), f.exceedsReplayWindow(cost), used, retained, exceeds)
				}
			}
			want("in flight", oneDelivery|cost, 0, false)
			for range 2 { // a replay retains it again
				d.Control().Spend(false)()
				want("retained", cost, cost, true)
			}
			bytesBack(d)
			want("released", 0, 0, false)
		})
	}
}
