package golden

import (
	"errors"
	"io/fs"
	"path/filepath"
	"testing"
)

func TestCompare(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if _, err := compare(path, []byte("a\n"), false); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a file: %v", err)
	}
	if diff, err := compare(path, []byte("a\n"), true); diff != "" || err != nil {
		t.Errorf("written: %q, %v", diff, err)
	}
	if diff, err := compare(path, []byte("a\n"), false); diff != "" || err != nil {
		t.Errorf("the same: %q, %v", diff, err)
	}
	if diff, err := compare(path, []byte("b\n"), false); diff == "" || err != nil {
		t.Errorf("another: %q, %v", diff, err)
	}
}

func TestJSON(t *testing.T) {
	type value struct{ Text string }
	const path = "testdata/value.json"
	JSON(t, path, value{"<a> & b"})
	var got value
	if ReadJSON(t, path, &got); got.Text != "<a> & b" {
		t.Errorf("read %+v", got)
	}
}
