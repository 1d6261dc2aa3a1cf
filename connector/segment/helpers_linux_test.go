package segment_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
)

var edge = connector.Edge{From: "thinker", To: "talker"}

var (
	old     = content(1, 10_000)
	fresh   = content(2, 20_000)
	another = content(3, 30_000)
)

func open(t *testing.T, opts segment.Options) *segment.Transport {
	t.Helper()
	end, err := segment.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	return end.(*segment.Transport)
}

// list returns the paths below a directory, sorted.
func list(t *testing.T, dir string) []string {
	t.Helper()
	var names []string
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if path != dir {
			names = append(names, strings.TrimPrefix(path, dir+"/"))
		}
		return err
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	slices.Sort(names)
	return names
}

// values lists a directory without the journals.
func values(t *testing.T, dir string) []string {
	t.Helper()
	return slices.DeleteFunc(list(t, dir), func(name string) bool { return strings.HasPrefix(name, ".") })
}

// journals lists the journals of a directory, and checks that each spare belongs to one.
func journals(t *testing.T, dir string) []string {
	t.Helper()
	home := fmt.Sprintf(".omnibus-%d", os.Geteuid())
	var names []string
	for _, name := range list(t, filepath.Join(dir, home)) {
		if !strings.HasPrefix(name, "spare-") {
			names = append(names, name)
		}
	}
	for _, name := range list(t, filepath.Join(dir, home)) {
		if strings.HasPrefix(name, "spare-") && !slices.ContainsFunc(names, func(of string) bool { return strings.HasPrefix(name, "spare-"+of+"-") }) {
			t.Errorf("spare %q has no journal: %q", name, names)
		}
	}
	return names
}

func content(seed byte, size int) []byte {
	return bytes.Repeat([]byte{seed, 7, seed + 1}, size/3+1)[:size]
}

func put(t *testing.T, end connector.Transport, key string, payload []byte) connector.Metadata {
	t.Helper()
	meta, err := tryPut(t.Context(), end, key, payload)
	if err != nil {
		t.Fatal(err)
	}
	return meta
}

func tryPut(ctx context.Context, end connector.Transport, key string, payload []byte) (connector.Metadata, error) {
	return end.Put(ctx, edge, key, len(payload), func(dst []byte) error {
		copy(dst, payload)
		return nil
	})
}

// wantValue gets a value and compares it.
func wantValue(t *testing.T, end connector.Transport, key string, meta connector.Metadata, want []byte) {
	t.Helper()
	payload, err := end.Get(t.Context(), edge, key, meta)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	if !bytes.Equal(payload.Bytes(), want) {
		t.Errorf("get %q: %d bytes that are not the %d that were put", key, len(payload.Bytes()), len(want))
	}
	payload.Release()
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

func wantNone(t *testing.T, end connector.Transport, key string, meta connector.Metadata) {
	t.Helper()
	_, err := end.Get(t.Context(), edge, key, meta)
	wantErr(t, "get of "+key, err, connector.ErrNotFound)
}
