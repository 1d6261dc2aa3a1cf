package pythontest_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// TestPythonWithoutModule: a missing module skips a test.
func TestPythonWithoutModule(t *testing.T) {
	fake := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(fake, []byte("#!/bin/sh\necho no module named $2 >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("OMNIBUS_PYTHON", fake)
	skipped := t.Run("skips", func(t *testing.T) {
		defer func() {
			if !t.Skipped() {
				t.Error("not skipped")
			}
		}()
		pythontest.Interpreter(t, "msgspec")
	})
	if !skipped {
		t.Error("a missing module failed the test")
	}
}
