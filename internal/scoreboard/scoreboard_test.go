package scoreboard

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestActivity: a reader gets the handler that runs, its request, and for how long it has run.
func TestActivity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		memory := make([]byte, Bytes) // begins at a page
		entries := EntriesIn(memory)
		w := WriterOf(&entries[3], 7, memory)
		if a, found := entries[3].Read(); found {
			t.Fatalf("%+v runs before any handler has begun", a)
		}
		if ran := w.Pause(); ran >= 0 {
			t.Errorf("a handler that did not begin ran for %v", ran)
		}
		w.Begin(42, 0)
		time.Sleep(time.Second) //nolint:forbidigo // of the test's own time
		a, found := entries[3].Read()
		if !found || a.Request != 42 || a.Stage != 7 || a.Edge != -1 || a.For != time.Second {
			t.Errorf("read %+v, %v", a, found)
		}
		ran := w.Pause()
		time.Sleep(time.Hour) //nolint:forbidigo // of the test's own time
		w.Begin(42, ran)
		if again, _ := entries[3].Read(); again.For != time.Second || again.Since == a.Since {
			t.Errorf("after a wait it has run for %v, want the second before it, as another activity", again.For)
		}
		w.End()
		if a, found := entries[3].Read(); found {
			t.Errorf("%+v runs after its end", a)
		}
	})
}
