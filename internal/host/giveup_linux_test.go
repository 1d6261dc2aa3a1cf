//go:build linux

package host_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/host"
)

// TestGivenUpBeforeReady: a stage that was served and is given up before the other stages are ready
// ends the run. The run never becomes ready.
func TestGivenUpBeforeReady(t *testing.T) {
	for restart, want := range map[string]string{
		"never":                       "its restart policy is never",
		"on-failure, max_restarts: 1": "1 restarts within",
	} {
		r := start(t, `
stages:
  - {stage_id: `+crashing+`, omnibus: {exec: [SELF], restart: `+restart+`}}
  - {stage_id: other, engine_input_source: [`+crashing+`], omnibus: {attach: true, start_timeout: 30s}}
`)
		text, err := r.wait()
		var failed *host.StageError
		if !errors.As(err, &failed) || failed.Stage != crashing || !failed.Served {
			t.Errorf("%s: the run ended with %v", restart, err)
			continue
		}
		for _, part := range []string{want, "before the other stages were ready", "no such voice"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: %v\nhas no %q", restart, err, part)
			}
		}
		if strings.Contains(text, "ready: ") {
			t.Errorf("%s: it printed\n%s", restart, text)
		}
	}
}
