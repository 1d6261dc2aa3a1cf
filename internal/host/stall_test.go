package host

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestStallsAreLogged: each line says who waits, a request or a process, and for what.
func TestStallsAreLogged(t *testing.T) {
	var log bytes.Buffer
	h := &running{opts: Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	h.logStalls([]bus.Stall{
		{Request: 42, Edge: "a->b", Waited: 5 * time.Second, Holder: "process 7 has it"},
		{Process: "process 8", Edge: "exchange", Waited: 5 * time.Second, Holder: "room"},
	})
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	for i, want := range [][]string{
		{"request=000000000000002a", "edge=a->b", "waited=5s", `for="process 7 has it"`},
		{`process="process 8"`, "edge=exchange", "for=room"},
	} {
		for _, w := range want {
			if i >= len(lines) || !strings.Contains(lines[i], w) {
				t.Errorf("line %d is without %s:\n%s", i, w, log.String())
			}
		}
	}
	if strings.Contains(log.String(), "0000000000000000") {
		t.Errorf("a request that there is not:\n%s", log.String())
	}
}
