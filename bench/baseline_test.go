package bench

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestMeasureBoth checks who goes first, and that each pays for itself.
func TestMeasureBoth(t *testing.T) {
	var order []string
	var sink []*[64]byte
	ours := func() error {
		order = append(order, "ours")
		for range 1000 {
			sink = append(sink, new([64]byte))
		}
		return nil
	}
	baseline := func() error { order = append(order, "baseline"); return nil }
	for _, swapped := range []bool{false, true} {
		order, sink = nil, nil
		our, base, err := measureBoth(swapped, ours, baseline)
		if err != nil {
			t.Fatal(err)
		}
		want := []string{"ours", "baseline"}
		if swapped {
			slices.Reverse(want)
		}
		if !slices.Equal(order, want) {
			t.Errorf("swapped %v: %v ran, want %v", swapped, order, want)
		}
		if our.mallocs < 1000 || base.mallocs >= 1000 {
			t.Errorf("swapped %v: %d allocations, and %d of the baseline, want 1000 and next to none", swapped, our.mallocs, base.mallocs)
		}
	}

	broken := errors.New("broken")
	failing := func() error { return broken }
	for _, swapped := range []bool{false, true} {
		if _, _, err := measureBoth(swapped, failing, baseline); !errors.Is(err, broken) {
			t.Errorf("ours broke, swapped %v: %v", swapped, err)
		}
		if _, _, err := measureBoth(swapped, ours, failing); !errors.Is(err, broken) || err.Error() != "baseline: broken" {
			t.Errorf("the baseline broke, swapped %v: %v", swapped, err)
		}
	}
}

func TestCostPer(t *testing.T) {
	c := cost{elapsed: 3 * time.Microsecond, mallocs: 5}
	if c.nsPer(2) != 1500 || c.microsPer(2) != 1.5 || c.allocsPer(2) != 2.5 {
		t.Errorf("got %v ns, %v µs, %v allocations", c.nsPer(2), c.microsPer(2), c.allocsPer(2))
	}
}

// TestHeapRing checks that all of the memory is used in turn, as a store's is.
func TestHeapRing(t *testing.T) {
	r := newHeapRing(1000, 300)
	var starts []int
	for range 5 {
		object := r.next()
		if len(object) != 300 {
			t.Fatalf("an object of %d bytes", len(object))
		}
		starts = append(starts, cap(r.memory)-cap(object))
	}
	if want := []int{0, 364, 0, 364, 0}; !slices.Equal(starts, want) {
		t.Errorf("objects begin at %v, want %v", starts, want)
	}
}

// TestTurns checks that nobody in a race always follows the same one.
func TestTurns(t *testing.T) {
	for n := 1; n <= 12; n++ {
		behind := make(map[[2]int]int)
		for round := range 2 * n {
			order := turns(n, round)
			for i, who := range order[1:] {
				behind[[2]int{order[i], who}]++
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

// TestSameStream checks that the bus and its baseline deliver the same payloads
// in the same order, and the same number of samples of their latency.
func TestSameStream(t *testing.T) {
	b, err := openBus(t.Context(), relay, shmstore.Options{ArenaBytes: 4 * mib})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	line := newChannelLine()
	defer line.close()

	const n = 4*sampleEvery + 1
	type side struct {
		latencies *latencies
		got       []byte
	}
	receive := func(s *side) func([]byte) {
		return func(payload []byte) {
			s.got = append(s.got, payload[smallPayload-1])
			s.latencies.read(payload)
		}
	}
	send := func(s *side, i int) []byte {
		payload := s.latencies.stamp(i)
		payload[smallPayload-1] = byte(i)
		return payload
	}
	ours, theirs := &side{latencies: newLatencies()}, &side{latencies: newLatencies()}
	if err := busStream(t.Context(), b, n, func(in bus.Emitter, i int) error {
		return in.EmitBytes(send(ours, i))
	}, receive(ours)); err != nil {
		t.Fatal(err)
	}
	line.stream(n, func(i int) []byte { return send(theirs, i) }, receive(theirs))

	for i, got := range ours.got {
		if got != byte(i) {
			t.Fatalf("message %d has payload %d", i, got)
		}
	}
	if !slices.Equal(ours.got, theirs.got) {
		t.Errorf("the bus delivered %v, the channels %v", ours.got, theirs.got)
	}
	for _, s := range []*side{ours, theirs} {
		if len(s.latencies.micros) != 5 || slices.Min(s.latencies.micros) <= 0 {
			t.Errorf("latencies are %v, want 5 above zero", s.latencies.micros)
		}
	}
}

// TestStreamThatBreaks checks that neither side of a stream waits for the other
// when a message cannot be sent.
func TestStreamThatBreaks(t *testing.T) {
	b, err := openBus(t.Context(), relay, shmstore.Options{ArenaBytes: 4 * mib})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close(t.Context())
	broken := errors.New("broken")
	err = busStream(t.Context(), b, 1000, func(in bus.Emitter, i int) error {
		if i == 500 {
			return broken
		}
		return in.EmitBytes([]byte("x"))
	}, nil)
	if !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}
