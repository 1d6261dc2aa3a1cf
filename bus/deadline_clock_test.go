package bus_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestDeadlinesAreOfTheMonotonicClock: a wall-clock deadline is converted to the monotonic clock at the submit, so
// that setting the wall clock neither ends nor prolongs the request.
func TestDeadlinesAreOfTheMonotonicClock(t *testing.T) {
	at := time.Now().Add(time.Hour).Round(0) // without a monotonic reading
	ctx, cancel := context.WithDeadline(t.Context(), at)
	defer cancel()
	seen := make(chan time.Time, 1)
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "a", Handle: func(t *bus.Task, d *bus.Delivery) error {
		own, _ := t.Context().Deadline()
		if seen <- own; !own.Equal(d.Deadline) {
			return errors.New("the delivery has another deadline")
		}
		return nil
	}}), bus.Options{})
	for name, begin := range map[string]func() (*bus.Request, error){
		"an option's": func() (*bus.Request, error) { return b.Submit(t.Context(), "x", bus.WithDeadline(at)) },
		"a context's": func() (*bus.Request, error) { return b.Submit(ctx, "x") },
		"of both":     func() (*bus.Request, error) { return b.Submit(ctx, "x", bus.WithDeadline(at.Add(time.Hour))) },
	} {
		r, err := begin()
		if err != nil {
			t.Fatal(err)
		}
		testbus.MustReceive(t, r, nil)
		if own := <-seen; !strings.Contains(own.String(), " m=") || own.Sub(at).Abs() > time.Minute {
			t.Errorf("%s: the deadline is %v, want %v by the monotonic clock", name, own, at)
		}
	}
}

// TestFarDeadlines: a deadline beyond the range of the clock never ends a request, and one of long ago ends it at once.
func TestFarDeadlines(t *testing.T) {
	b := testbus.Open(t, testbus.Linear(bus.Stage("m", testbus.Upper)), bus.Options{})
	for _, at := range []time.Time{time.Now().Add(math.MaxInt64), time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC), time.Unix(1<<60, 0)} {
		r, err := b.Submit(t.Context(), "x", bus.WithDeadline(at))
		if err != nil {
			t.Fatal(err)
		}
		testbus.MustReceive(t, r, []string{"X"})
	}
	for _, at := range []time.Time{time.Now().Add(math.MinInt64), time.Time{}.Add(1), time.Unix(-1<<60, 0)} {
		r, err := b.Stream(t.Context(), bus.WithDeadline(at))
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Wait(testbus.Soon(t)); !errors.Is(err, bus.ErrDeadline) || !strings.Contains(err.Error(), " by 2562047h47m16.85477") {
			t.Errorf("%v: %v, want ErrDeadline", at, err)
		}
		r.Close()
	}
}
