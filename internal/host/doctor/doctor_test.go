package doctor

import (
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestExamine(t *testing.T) {
	dir := t.TempDir()
	checks := Examine(t.Context(), Subject{Folder: filepath.Join(dir, "omnibus"), Python: "no-such-python"})
	if Healthy(checks) != (runtime.GOOS == "linux") {
		t.Errorf("healthy is %v on %s: %+v", Healthy(checks), runtime.GOOS, checks)
	}
	names := make(map[string]bool)
	for _, c := range checks {
		if c.Name == "" || c.Found == "" || names[c.Name] || (c.Verdict != OK && c.Advice == "") {
			t.Errorf("a check without finding or advice: %+v", c)
		}
		names[c.Name] = true
	}
	if last := checks[len(checks)-1]; last.Verdict != Note || !strings.Contains(last.Found, "no-such-python") {
		t.Errorf("python: %+v", last)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestHealthy(t *testing.T) {
	if !Healthy([]Check{{Verdict: OK}, {Verdict: Note}}) {
		t.Error("a note is not a failure")
	}
	if Healthy([]Check{{Verdict: OK}, {Verdict: Failed}}) {
		t.Error("a failure is one")
	}
}
