package lane_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestLogWithoutDriver: a lane that wants a GPU and has none logs the reason, for each mode; a lane
// that wants none, as every bus without one, logs no line.
func TestLogWithoutDriver(t *testing.T) {
	for name, c := range map[string]struct {
		opts lane.Options
		want int // lines
	}{
		"none is wanted": {lane.Options{}, 0},
		"one is missing": {lane.Options{NoDriver: cudaipc.ErrNotBuilt}, 2},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			c.opts.Logger = slog.New(slog.NewTextHandler(&log, nil))
			l, err := lane.Open(t.Context(), c.opts)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Count(log.String(), cudaipc.ErrNotBuilt.Error()); got != c.want || c.want == 0 && log.Len() > 0 {
				t.Errorf("%d lines, want %d:\n%s", got, c.want, &log)
			}
			if l.Why(lane.Pool) == nil || l.Why(lane.IPC) == nil {
				t.Error("a mode works without a driver")
			}
			if err := l.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}
