package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"testing/iotest"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

// endless is an input without an end, such as /dev/zero. It counts what was read.
type endless struct{ bytes int }

func (e *endless) Read(p []byte) (int, error) {
	e.bytes += len(p)
	return len(p), nil
}

// machine has this much free memory, of which a tenth stays free.
func machine(availableKiB string) headroom.Probe {
	return headroom.Probe{
		Proc:   fstest.MapFS{"meminfo": {Data: []byte("MemAvailable: " + availableKiB + " kB\n")}},
		Cgroup: fstest.MapFS{},
	}
}

func TestReadWhole(t *testing.T) {
	for _, size := range []int{0, 1, firstRead - 1, firstRead, firstRead + 1, 3*firstRead + 7} {
		want := bytes.Repeat([]byte("abcdefg"), size/7+1)[:size]
		path := filepath.Join(t.TempDir(), "input")
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		file, err := readFile(path)
		if err != nil || !bytes.Equal(file, want) {
			t.Errorf("%d bytes of a file of %d: %v", len(file), size, err)
		}
		stream, err := readWhole(iotest.HalfReader(bytes.NewReader(want)), machine("1048576"))
		if err != nil || !bytes.Equal(stream, want) {
			t.Errorf("%d bytes of a stream of %d: %v", len(stream), size, err)
		}
	}
}

// An input that does not fit is refused before it takes the memory of others.
func TestReadWholeTooLarge(t *testing.T) {
	var in endless
	_, err := readWhole(&in, machine("8192"))
	if err == nil || !strings.Contains(err.Error(), "/proc/meminfo leaves 8388608, of which 838860 stay free: give it in pieces") {
		t.Errorf("an endless input: %v", err)
	}
	if most := 8 << 20 / perInput; in.bytes < most/2 || in.bytes > most {
		t.Errorf("%d bytes were read, and there is room for %d", in.bytes, most)
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "huge"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := f.Truncate(1 << 30); err != nil {
		t.Fatal(err)
	}
	if _, err := readWhole(f, machine("8192")); err == nil || !strings.Contains(err.Error(), "has 1073741825 bytes or more") {
		t.Errorf("a file of a gibibyte: %v", err)
	}
	if at, err := f.Seek(0, 1); at != 0 || err != nil {
		t.Errorf("%d bytes of it were read: %v", at, err)
	}
}
