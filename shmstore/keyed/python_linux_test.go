package keyed_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// python starts a process in Python that writes or reads the store at a path.
func python(t *testing.T, role, path string, options map[string]any) *pythontest.Process {
	t.Helper()
	text, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	p := pythontest.Start(t, pythontest.Command(t, "../../clients/python/tests/keyedpeer.py", role, path, string(text)))
	var pid int
	if err := p.Answer(&pid); err != nil {
		t.Fatal(err)
	}
	return p
}

func numbers(h shmstore.Handle) []any {
	return []any{h.Store, h.Gen, h.Offset, h.Size, h.Slot, h.Codec}
}

// handle is the answer of a process in Python.
func handle(t *testing.T, p *pythontest.Process, what ...any) (h shmstore.Handle) {
	t.Helper()
	p.Tell(what)
	var got json.RawMessage
	var n []json.Number
	if err := p.Answer(&got); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(got, &n); err != nil || len(n) != 6 {
		t.Fatalf("%v is answered %s", what, got)
	}
	var v [6]uint64
	for i := range v {
		if err := json.Unmarshal([]byte(n[i]), &v[i]); err != nil {
			t.Fatal(err)
		}
	}
	return shmstore.Handle{Store: v[0], Gen: v[1], Offset: v[2], Size: v[3], Slot: uint32(v[4]), Codec: uint32(v[5])}
}

// TestPythonReads: a process in Python gets values that a process in Go puts, and its charges are dropped when it is
// killed.
func TestPythonReads(t *testing.T) {
	s, path := storeOf(t, shmstore.Options{ArenaBytes: 16 * kib, MaxObjectBytes: 8 * kib}), filepath.Join(t.TempDir(), "store.sock")
	if err := s.Listen(path); err != nil {
		t.Fatal(err)
	}
	p := python(t, "reader", path, nil)
	h := put(t, s, "key", bytes.Repeat([]byte{7}, 5*kib))
	p.Tell(append([]any{"get"}, numbers(h)...))
	p.Want([]int{5 * kib, 7})
	if _, err := s.GetCached("key"); err != nil {
		t.Fatal(err)
	}
	p.Tell(append([]any{"hold"}, numbers(h)...))
	p.Want(1)
	put(t, s, "owed", bytes.Repeat([]byte{8}, 5*kib))
	if _, err := s.Put("more", make([]byte, 8*kib)); !errors.Is(err, shmstore.ErrFull) {
		t.Fatalf("put beside objects that are held and owed for: %v", err)
	}
	p.Kill()
	awaitReaders(s, 0)
	put(t, s, "more", make([]byte, 8*kib))
}

// TestLyingReader: a reader that settles more than it owes is removed, and delays no put.
func TestLyingReader(t *testing.T) {
	s, path := storeOf(t, shmstore.Options{ArenaBytes: 16 * kib, MaxObjectBytes: 8 * kib}), filepath.Join(t.TempDir(), "store.sock")
	if err := s.Listen(path); err != nil {
		t.Fatal(err)
	}
	p := python(t, "reader", path, nil)
	for _, again := range []func() (shmstore.Handle, error){
		func() (shmstore.Handle, error) { return s.Put("other", block(2, kib)) },
		func() (shmstore.Handle, error) { return s.GetCached("key") },
	} {
		h := put(t, s, "key", block(1, kib))
		p.Tell([]any{"lie", h.Slot})
		p.Want(nil)
		s.FreeUnused(math.MaxInt64) // checks the counts of the reader
		if _, err := again(); err != nil {
			t.Error(err)
		}
		awaitReaders(s, 0)
		if err := s.Clear(); err != nil {
			t.Error(err)
		}
		p = python(t, "reader", path, nil)
	}
}

// TestPythonWrites: a process in Go gets values that a process in Python puts, and gets ErrOwnerGone when that is killed.
func TestPythonWrites(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store.sock")
	p := python(t, "writer", path, map[string]any{"arena_bytes": 16 * kib, "max_readers": 1})
	r, err := keyed.Dial(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := keyed.Dial(path); !errors.Is(err, shmstore.ErrTooManyReaders) {
		t.Errorf("a second reader of one: %v", err)
	}
	for range 20 { // more than there is space for
		read := func(what ...any) []byte {
			v := get(t, r, handle(t, p, what...))
			defer v.Release()
			var b []byte
			if err := v.Decode(&b); err != nil {
				t.Error(err)
			}
			return b
		}
		want := bytes.Repeat([]byte{9}, 3*kib)
		if got := read("put", "key", 3*kib, 9); !bytes.Equal(got, want) {
			t.Errorf("%d bytes", len(got))
		}
		if got := read("cached", "key"); !bytes.Equal(got, want) {
			t.Errorf("%d bytes", len(got))
		}
		p.Tell([]any{"delete", "key"})
		p.Want(nil)
	}
	v := get(t, r, handle(t, p, "tensor", "t", []int{2, 3}))
	var x codec.Tensor
	if err := v.Decode(&x); err != nil || !bytes.Equal(x.Data, []byte{0, 1, 2, 3, 4, 5}) {
		t.Errorf("%v, %v", x, err)
	}
	owed := handle(t, p, "put", "owed", 100, 1)
	p.Crash()
	for err = nil; !errors.Is(err, keyed.ErrOwnerGone); {
		if err = r.Drop(owed); err != nil && !errors.Is(err, keyed.ErrOwnerGone) && !errors.Is(err, shmstore.ErrNoDebt) {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(x.Data, []byte{0, 1, 2, 3, 4, 5}) {
		t.Error("a held value has changed")
	}
	v.Release()
}
