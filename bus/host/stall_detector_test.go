package host

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestStallDetector: a client is stuck when it has made no progress and used no processor time during
// the time in which the host checked.
func TestStallDetector(t *testing.T) {
	const limit = 4 * time.Second
	type check struct {
		after time.Duration
		moves bool
		used  time.Duration
		stuck bool
	}
	second := func(moves bool, used time.Duration, stuck bool) check { return check{time.Second, moves, used, stuck} }
	for name, checks := range map[string][]check{
		"it moves":                     {second(true, 0, false), second(true, 0, false), second(true, 0, false), second(true, 0, false), second(true, 0, false)},
		"it does not":                  {second(true, 0, false), second(false, 0, false), second(false, 0, false), second(false, 0, false), second(false, 0, true), second(false, 0, false)},
		"it moves once":                {second(true, 0, false), second(false, 0, false), second(false, 0, false), second(false, 0, false), second(true, 0, false), second(false, 0, false)},
		"it uses the processor":        {second(true, 0, false), second(false, 1, false), second(false, 2, false), second(false, 3, false), second(false, 4, false), second(false, 5, false)},
		"the host stood still":         {second(true, 0, false), {time.Hour, false, 0, false}, second(false, 0, false), second(false, 0, false)},
		"... and the client goes on":   {second(true, 0, false), second(false, 0, false), {time.Hour, false, 0, false}, second(true, 0, false)},
		"the host stood still for two": {second(true, 0, false), {time.Hour, false, 0, false}, {time.Hour, false, 0, false}, second(false, 0, false), second(false, 0, true)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m stallDetector
				for i, l := range checks {
					time.Sleep(l.after) //nolint:forbidigo // of the test's own time
					if stuck := m.stuckNow(l.moves, l.used, limit); stuck != l.stuck {
						t.Errorf("check %d: stuck %v, want %v", i, stuck, l.stuck)
					}
				}
			})
		})
	}
}
