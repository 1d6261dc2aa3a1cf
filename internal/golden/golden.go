package golden

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the files that tests compare with")

// Compare fails the test unless a file has these bytes. The path is relative to the
// package, with slashes.
func Compare(t testing.TB, path string, made []byte) {
	t.Helper()
	diff, err := compare(filepath.FromSlash(path), made, *update)
	switch {
	case err != nil:
		t.Fatalf("%v: go test -update writes it", err)
	case diff != "":
		t.Errorf("%s differs from the test's output; if that is intended, go test -update rewrites it (-file +made):\n%s", path, diff)
	}
}

// JSON is Compare for a value, as indented JSON.
func JSON(t testing.TB, path string, made any) {
	t.Helper()
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(made); err != nil {
		t.Fatal(err)
	}
	Compare(t, path, text.Bytes())
}

// ReadJSON reads a JSON file into a value. The path is relative to the package, with slashes.
func ReadJSON(t testing.TB, path string, value any) {
	t.Helper()
	text, err := os.ReadFile(filepath.FromSlash(path))
	if err == nil {
		err = json.Unmarshal(text, value)
	}
	if err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func compare(path string, made []byte, update bool) (diff string, err error) {
	if update {
		return "", os.WriteFile(path, made, 0o644) //nolint:gosec // readable by all users
	}
	file, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return cmp.Diff(string(file), string(made)), nil
}
