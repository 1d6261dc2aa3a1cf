package flow_test

import (
	"math"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// TestForeignClock: the time in a notification comes from another process, and no value of it makes
// a sum of times decrease.
func TestForeignClock(t *testing.T) {
	var opened int
	types := registry(t, &opened)
	from, to := open(t, types, "0"), open(t, types, "1")
	edge := connector.Edge{From: "0", To: "1"}
	path, err := to.Path(edge)
	if err != nil {
		t.Fatal(err)
	}
	const day = 24 * time.Hour
	for _, tc := range []struct {
		name        string
		sentTS      float64
		least, most time.Duration
	}{
		{"not a number", math.NaN(), 0, 0},
		{"before the epoch", -1, 0, 0},
		{"the far future", math.MaxFloat64, 0, 0},
		{"the end of time", math.Inf(1), 0, 0},
		{"beyond 64 bits of microseconds", 1e14, 0, 0},
		{"the epoch", math.SmallestNonzeroFloat64, day, day},
		{"an hour ago", float64(time.Now().Add(-time.Hour).UnixMicro()) / 1e6, time.Hour - time.Minute, day},
	} {
		t.Run(tc.name, func(t *testing.T) {
			n, _, err := from.Send(t.Context(), "1", "r1", nil, 1)
			if err != nil {
				t.Fatal(err)
			}
			n.SentTS = tc.sentTS
			before := path.Times().InFlight
			v, got, err := to.Receive(t.Context(), n)
			if err != nil {
				t.Fatal(err)
			}
			v.Release()
			if got.InFlight < tc.least || got.InFlight > tc.most {
				t.Errorf("%v in flight, want %v to %v", got.InFlight, tc.least, tc.most)
			}
			if added := path.Times().InFlight - before; added != got.InFlight {
				t.Errorf("%v in flight added %v", got.InFlight, added)
			}
		})
	}
}
