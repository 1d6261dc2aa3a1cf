package bus

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// TestStallsAreLogged: each line names the waiting request or process, and the holder. Requests that wait for one edge
// share a line.
func TestStallsAreLogged(t *testing.T) {
	var log bytes.Buffer
	b := &Bus{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	b.reportStalls([]Stall{
		{Request: 41, Edge: "a->b", Waited: 4 * time.Second, Holder: "process 6 has it"},
		{Request: 42, Edge: "a->b", Waited: 5 * time.Second, Holder: "process 7 has it"},
		{Process: "process 8", Edge: "exchange", Waited: 3 * time.Second, Holder: "room"},
		{Request: 43, Waited: 2 * time.Second, Holder: "it", Handler: &RunningHandler{Stage: "c"}},
		{Request: 44, Waited: time.Second, Holder: "no process serves it", Stage: "d"},
	})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	wants := [][]string{
		{"request=000000000000002a", "edge=a->b", "waited=5s", `for="process 7 has it"`, "more_requests=1"},
		{`process="process 8"`, "edge=exchange", "for=room", "more_requests=0"},
		{"request=000000000000002b", "stage=c", "for=it"},
		{"request=000000000000002c", "stage=d", `for="no process serves it"`},
	}
	if len(lines) != len(wants) {
		t.Fatalf("%d lines, want %d:\n%s", len(lines), len(wants), &log)
	}
	for i, want := range wants {
		for _, w := range want {
			if !strings.Contains(lines[i], w) {
				t.Errorf("line %d is without %s:\n%s", i, w, lines[i])
			}
		}
	}
	if strings.Contains(log.String(), "0000000000000000") {
		t.Errorf("a request without a number:\n%s", log.String())
	}
}
