package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// TestServe puts values and gets them, in a store that is a folder.
func TestServe(t *testing.T) {
	program, err := filepath.Abs("../../../connector/bridge/testdata/folder.py")
	if err != nil {
		t.Fatal(err)
	}
	cmd := pythontest.Command(t, program)
	for _, v := range cmd.Env {
		if path, ok := strings.CutPrefix(v, "PYTHONPATH="); ok {
			t.Setenv("PYTHONPATH", path)
		}
	}
	python := filepath.Join(t.TempDir(), "python")
	if err := os.WriteFile(python, fmt.Appendf(nil, "#!/bin/sh\nexec %q %q \"$@\"\n", cmd.Path, program), 0o755); err != nil {
		t.Fatal(err)
	}
	extra, err := json.Marshal(map[string]string{"python": python, "master": t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	put, get := `{"Op": "put", "Key": "k", "Size": 1000, "N": 3}`, `{"Op": "get", "Key": "k", "Size": 1000, "N": 3}`
	if err := serve("MooncakeConnector", string(extra), strings.NewReader(put+"\n"+get), &out); err != nil {
		t.Fatal(err)
	}
	if lines := strings.Count(out.String(), "\n"); lines != 2 {
		t.Errorf("%d answers: %q", lines, out.String())
	}
	if err := serve("MooncakeConnector", string(extra), strings.NewReader(get), &out); err == nil {
		t.Error("values were got twice")
	}
}
