package child

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func TestHistory(t *testing.T) {
	const ms, s, minute = time.Millisecond, time.Second, time.Minute
	type end struct {
		ran   time.Duration
		ready bool
		code  int
	}
	crash, late, well := end{ran: 10 * ms, code: 1}, end{ran: 30 * s, code: 1}, end{ran: time.Hour, ready: true, code: 1}
	zero := end{ran: 10 * ms, ready: true}
	tests := []struct {
		name    string
		backoff Backoff
		ends    []end
		want    []time.Duration
		err     *limitError // the error after the pauses in want
	}{
		{
			name: "pauses double, and the sixth crash is the last",
			ends: []end{crash, crash, crash, crash, crash, crash},
			want: []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms},
			err:  &limitError{Restarts: 5, Window: minute},
		},
		{
			name:    "pauses stay at the longest",
			backoff: Backoff{First: 4 * s, Limit: -1},
			ends:    []end{crash, crash, crash, crash},
			want:    []time.Duration{4 * s, 8 * s, 10 * s, 10 * s},
		},
		{
			name:    "a factor of one",
			backoff: Backoff{First: s, Factor: 1, Limit: -1},
			ends:    []end{crash, crash, crash},
			want:    []time.Duration{s, s, s},
		},
		{
			name: "a process that ran well begins anew, and is never given up",
			ends: []end{crash, crash, well, well, well, well, well, well, crash},
			want: []time.Duration{200 * ms, 400 * ms, 200 * ms, 200 * ms, 200 * ms, 200 * ms, 200 * ms, 200 * ms, 400 * ms},
		},
		{
			name: "a process that was never ready has not run well",
			ends: []end{late, late, late, late, late, late},
			want: []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms},
			err:  &limitError{Restarts: 5},
		},
		{
			name:    "restarts that lie back do not count",
			backoff: Backoff{Limit: 1, Reset: time.Hour},
			ends:    []end{{ran: s, ready: true, code: 1}, {ran: 2 * minute, ready: true, code: 1}, {ran: s, ready: true, code: 1}},
			want:    []time.Duration{200 * ms, 400 * ms},
			err:     &limitError{Restarts: 1, Window: minute},
		},
		{
			name:    "an exit with 0 does not count, and is followed by a pause",
			backoff: Backoff{Limit: 1},
			ends:    []end{zero, zero, zero, zero, zero, zero, zero, zero, crash, zero, crash},
			want:    []time.Duration{200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 6400 * ms, 10 * s, 10 * s, 10 * s, 10 * s},
			err:     &limitError{Restarts: 1, Window: minute},
		},
		{
			name:    "an exit with 0 counts where the process was never ready",
			backoff: Backoff{Limit: 1},
			ends:    []end{{ran: s}, {ran: s}},
			want:    []time.Duration{200 * ms},
			err:     &limitError{Restarts: 1, Window: minute},
		},
		{
			name:    "the longest pause does not overflow",
			backoff: Backoff{First: s, Factor: 1e300, Max: 1<<63 - 1, Limit: -1},
			ends:    []end{crash, crash, crash},
			want:    []time.Duration{s, 1<<63 - 1, 1<<63 - 1},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := history{Backoff: test.backoff.withDefaults()}
			if err := h.validate(); err != nil {
				t.Fatal(err)
			}
			now := time.Unix(0, 0)
			var got []time.Duration
			var err error
			for _, e := range test.ends {
				now = now.Add(e.ran)
				var pause time.Duration
				if pause, err = h.next(now, &Death{Ran: e.ran, Ready: e.ready, Code: e.code}); err != nil {
					break
				}
				got = append(got, pause)
				now = now.Add(pause)
			}
			var limit *limitError
			errors.As(err, &limit)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("pauses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.err, limit); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// However processes end, a window has at most Limit restarts, and each pause is between First and Max.
func TestHistoryBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Backoff{
			First:  time.Duration(rapid.Int64Range(1, 5000).Draw(t, "first_ms")) * time.Millisecond,
			Factor: rapid.Float64Range(1, 10).Draw(t, "factor"),
			Limit:  rapid.IntRange(1, 8).Draw(t, "limit"),
			Window: time.Duration(rapid.Int64Range(1, 120).Draw(t, "window_s")) * time.Second,
		}.withDefaults()
		h := history{Backoff: b}
		now := time.Unix(0, 0)
		var restarts []time.Time
		for range rapid.IntRange(1, 50).Draw(t, "ends") {
			ran := time.Duration(rapid.Int64Range(0, 60_000).Draw(t, "ran_ms")) * time.Millisecond
			now = now.Add(ran)
			pause, err := h.next(now, &Death{Ran: ran, Ready: rapid.Bool().Draw(t, "ready"), Code: 1})
			if err != nil {
				return
			}
			if pause < b.First || pause > b.Max {
				t.Fatalf("pause %v is not between %v and %v", pause, b.First, b.Max)
			}
			now = now.Add(pause)
			restarts = append(restarts, now)
			if n := len(restarts) - b.Limit; n > 0 && now.Sub(restarts[n-1])-pause < b.Window {
				t.Fatalf("restart %d is decided %v after restart %d, within the window of %v",
					len(restarts), now.Sub(restarts[n-1])-pause, n, b.Window)
			}
		}
	})
}
