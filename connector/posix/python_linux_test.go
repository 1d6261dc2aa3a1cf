package posix_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// python starts the client of clients/python as an end of a store.
func python(t *testing.T, opts childOptions, doomed bool) *connectortest.Child {
	t.Helper()
	text, err := json.Marshal(opts)
	if err != nil {
		t.Fatal(err)
	}
	cmd := pythontest.Command(t, "testdata/peer.py")
	cmd.Env = append(cmd.Env, childVariable+"="+string(text), "PYTHONDONTWRITEBYTECODE=1")
	return connectortest.SpawnOther(t, doomed, cmd)
}

// TestPython: the Python client's ends keep the contract with ends of Go. Among
// themselves they have tests of their own, there.
func TestPython(t *testing.T) {
	for name, c := range map[string]func(*testing.T, childOptions) (put, get connector.Transport){
		"Go puts, Python gets": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return open(t, opts.options()), python(t, opts, false)
		},
		"Python puts, Go gets": func(t *testing.T, opts childOptions) (put, get connector.Transport) {
			return python(t, opts, false), open(t, opts.options())
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each case waits for an interpreter to begin
			runSuite(t, c)
		})
	}
}

// sides calls a test for a creator of Go and a reader of Python, and the other way round.
func sides(t *testing.T, run func(t *testing.T, opts childOptions, put, get func(opts childOptions) *connectortest.Child)) {
	goEnd := func(t *testing.T) func(childOptions) *connectortest.Child {
		return func(opts childOptions) *connectortest.Child { return spawnDoomed(t, opts) }
	}
	pythonEnd := func(t *testing.T) func(childOptions) *connectortest.Child {
		return func(opts childOptions) *connectortest.Child { return python(t, opts, true) }
	}
	t.Run("Go puts", func(t *testing.T) {
		t.Parallel()
		run(t, fresh(t), goEnd(t), pythonEnd(t))
	})
	t.Run("Python puts", func(t *testing.T) {
		t.Parallel()
		run(t, fresh(t), pythonEnd(t), goEnd(t))
	})
}

// spawnDoomed starts a child of Go that is to be killed.
func spawnDoomed(t *testing.T, opts childOptions) *connectortest.Child {
	t.Helper()
	return spawn(t, opts, "killed-from-outside")
}

// TestPythonCreatorKilled: readers find nothing more of a creator that was killed, whoever creates
// the store next removes what it left, and readers get from that one.
func TestPythonCreatorKilled(t *testing.T) {
	sides(t, func(t *testing.T, opts childOptions, newPut, newGet func(childOptions) *connectortest.Child) {
		first, get := newPut(opts), newGet(opts)
		put(t, first, "got", old)
		wantValue(t, get, "got", nil, old)
		put(t, first, "left", old)
		first.Kill()
		wantNone(t, get, "left", nil)
		if !has(list(t, opts.Dir), ".arena") {
			t.Error("the creator was killed, and its files are gone")
		}
		second := newPut(opts)
		meta := put(t, second, "next", next20k)
		wantNone(t, get, "left", nil)
		wantValue(t, get, "next", meta, next20k)
		if err := errors.Join(get.Close(), second.Close()); err != nil {
			t.Error(err)
		}
		wantEmpty(t, opts)
	})
}

// TestPythonReaderKilled: a reader that is killed while it gets has got the value or has
// not; its place is free again, and so is the room of what it had pinned.
func TestPythonReaderKilled(t *testing.T) {
	sides(t, func(t *testing.T, opts childOptions, newPut, newGet func(childOptions) *connectortest.Child) {
		opts.Bytes = 4 << 20
		const size = 2<<20 - 100 // the store has room for two of these
		creator := newPut(opts)
		want := content(5, size)
		for i := range 3 {
			key := fmt.Sprintf("key_%d", i)
			reader := newGet(opts)
			put(t, creator, "before", old)
			wantValue(t, reader, "before", nil, old)
			put(t, creator, key, want)
			going := make(chan struct{})
			go func() {
				defer close(going)
				_, _ = reader.Get(t.Context(), edge, key, nil)
			}()
			reader.Kill() // at whatever it is doing
			<-going
			next := newGet(opts)
			p, err := next.Get(t.Context(), edge, key, nil)
			switch {
			case err == nil:
				wantBytes(t, p, want)
				p.Release()
			case !errors.Is(err, connector.ErrNotFound):
				t.Errorf("get of what a killed reader wanted: %v", err)
			}
			if err := errors.Join(next.Close(), next.End()); err != nil {
				t.Error(err)
			}
		}
		// Whatever was pinned by the dead, there is room for three of these, wherever the
		// first two lie, which there would not be beside one of the others.
		for _, key := range []string{"a", "b", "a", "b"} {
			put(t, creator, key, content(6, 700<<10))
		}
	})
}

// TestPythonRoom: a put without room waits until a reader has got something, and rings.
func TestPythonRoom(t *testing.T) {
	sides(t, func(t *testing.T, opts childOptions, newPut, newGet func(childOptions) *connectortest.Child) {
		creator, reader := newPut(opts), newGet(opts)
		half := content(3, int(opts.Bytes)/2-200)
		put(t, creator, "a", half)
		put(t, creator, "b", half)
		done := make(chan error)
		go func() {
			_, err := tryPut(t.Context(), creator, "c", half)
			done <- err
		}()
		wantValue(t, reader, "a", nil, half)
		if err := <-done; err != nil {
			t.Error(err)
		}
		wantValue(t, reader, "b", nil, half)
		wantValue(t, reader, "c", nil, half)
	})
}

// TestPythonPlaces: who creates a store a second time, gets from one whose places are
// taken, or puts into one that it has opened, is told who is in the way.
func TestPythonPlaces(t *testing.T) {
	sides(t, func(t *testing.T, opts childOptions, newPut, newGet func(childOptions) *connectortest.Child) {
		creator, reader, third := newPut(opts), newGet(opts), newGet(opts)
		put(t, creator, "k", old)
		wantValue(t, reader, "k", nil, old)
		put(t, creator, "k", old)
		_, err := third.Get(t.Context(), edge, "k", nil)
		wantErr(t, "a get without a place", err, connector.ErrBusy)
		wantNames(t, err, reader.PID())
		_, err = tryPut(t.Context(), third, "k", old)
		wantErr(t, "a second creator", err, connector.ErrBusy)
		wantNames(t, err, creator.PID())
		_, err = tryPut(t.Context(), reader, "k", old)
		wantErr(t, "a put of a reader", err, connector.ErrUnavailable)
		wantNames(t, err, creator.PID())
		reader.Kill()
		wantValue(t, third, "k", nil, old)
	})
}

func wantNames(t *testing.T, err error, pid int) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), fmt.Sprint(pid)) {
		t.Errorf("%v: it does not name process %d", err, pid)
	}
}

// TestPythonAwaits: a reader that waits before there is a store gets what the first put
// brings, also from the next creator.
func TestPythonAwaits(t *testing.T) {
	sides(t, func(t *testing.T, opts childOptions, newPut, newGet func(childOptions) *connectortest.Child) {
		reader := newGet(opts)
		for _, want := range [][]byte{old, next20k} {
			done := make(chan error)
			go func() {
				p, err := reader.Await(t.Context(), edge, "k", nil)
				if err == nil {
					wantBytes(t, p, want)
				}
				done <- err
			}()
			creator := newPut(opts)
			put(t, creator, "k", want)
			if err := <-done; err != nil {
				t.Error(err)
			}
			creator.Kill()
		}
	})
}
