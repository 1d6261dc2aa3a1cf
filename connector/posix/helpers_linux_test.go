package posix_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/posix"
)

var edge = connector.Edge{From: "thinker", To: "talker"}

var (
	old     = content(1, 10_000)
	next20k = content(2, 20_000)
)

// fresh are the options of a store that there is not yet, in a directory of its own.
func fresh(t *testing.T) childOptions {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "omnibus-test-") //nolint:usetesting // memory, not a disk
	if err != nil {
		t.Skip("/dev/shm:", err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return childOptions{Name: "speech", Dir: dir, Readers: 1, Bytes: 1 << 20}
}

// open opens an end in this process.
func open(t *testing.T, opts posix.Options) connector.Transport {
	t.Helper()
	end, err := posix.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := end.Close(); err != nil {
			t.Error(err)
		}
	})
	return end
}

// newEnd opens an end that the test closes itself.
func newEnd(opts childOptions) (connector.Transport, error) { return posix.New(opts.options()) }

func list(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func has(names []string, suffix string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return strings.HasSuffix(n, suffix) })
}

// wantEmpty fails the test if a store has left files.
func wantEmpty(t *testing.T, opts childOptions) {
	t.Helper()
	if left := list(t, opts.Dir); len(left) > 0 {
		t.Errorf("left: %q", left)
	}
}

// head is the path of a store's first file.
func (o childOptions) head() string {
	return filepath.Join(o.Dir, "omnibus-"+strconv.Itoa(os.Geteuid())+"-"+o.Name)
}

// number reads a number of a store's file.
func (o childOptions) number(t *testing.T, part string, at int64) uint64 {
	t.Helper()
	f, err := os.Open(o.head() + part)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 8)
	if _, err := f.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(b)
}

func content(seed byte, size int) []byte {
	return bytes.Repeat([]byte{seed, 7, seed + 1}, size/3+1)[:size]
}

func put(t *testing.T, end connector.Transport, key string, payload []byte) connector.Metadata {
	t.Helper()
	meta, err := tryPut(t.Context(), end, key, payload)
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return meta
}

func tryPut(ctx context.Context, end connector.Transport, key string, payload []byte) (connector.Metadata, error) {
	return end.Put(ctx, edge, key, len(payload), func(dst []byte) error {
		copy(dst, payload)
		return nil
	})
}

// hold gets a value and keeps it.
func hold(t *testing.T, end connector.Transport, key string, meta connector.Metadata, want []byte) connector.Payload {
	t.Helper()
	payload, err := end.Get(t.Context(), edge, key, meta)
	if err != nil {
		t.Fatalf("get %q: %v", key, err)
	}
	wantBytes(t, payload, want)
	return payload
}

func wantBytes(t *testing.T, payload connector.Payload, want []byte) {
	t.Helper()
	if !bytes.Equal(payload.Bytes(), want) {
		t.Errorf("%d bytes that are not the %d that were put", len(payload.Bytes()), len(want))
	}
}

func wantValue(t *testing.T, end connector.Transport, key string, meta connector.Metadata, want []byte) {
	t.Helper()
	hold(t, end, key, meta, want).Release()
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

// wantAllRoom fails the test if not all memory of a store of 1 MiB can be had.
func wantAllRoom(t *testing.T, creator connector.Transport) {
	t.Helper()
	const half = 500_000
	put(t, creator, "half", content(8, half))
	put(t, creator, "other half", content(9, half))
	for _, key := range []string{"half", "other half"} {
		if err := creator.Cleanup(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}
