package keyed_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// owed is a charge of one reader that it has not collected.
type owed struct {
	reader int
	handle shmstore.Handle
	value  []byte
}

// modelled is a store with its model.
type modelled struct {
	store   *keyed.Store
	readers []*keyed.Reader
	ids     []shmstore.ReaderID
	alive   []bool
	values  map[string][]byte // the last value put under each key
	owed    []owed
	held    map[*keyed.Value][]byte
	of      map[*keyed.Value]int
	n       byte
}

// TestModel: values are put, asked for, deleted and freed in any order, and readers die. Each charge of a living
// reader is collected once, and has the value that was put.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, readers, ids := cache(t, 16*kib, 3)
		m := &modelled{
			store: s, readers: readers, ids: ids, alive: []bool{true, true, true}, values: make(map[string][]byte),
			held: make(map[*keyed.Value][]byte), of: make(map[*keyed.Value]int),
		}
		rt.Repeat(map[string]func(*rapid.T){
			"put": m.put, "cached": m.cached, "delete": m.delete, "collect": m.collect, "release": m.release,
			"clear": func(rt *rapid.T) { m.must(rt, s.Clear()); clear(m.values) },
			"free":  func(*rapid.T) { s.FreeUnused(math.MaxInt64) },
			"die":   m.die,
			"":      m.check,
		})
		for v := range m.held {
			v.Release()
		}
	})
}

func (m *modelled) must(rt *rapid.T, err error) {
	if err != nil {
		rt.Fatal(err)
	}
}

func (m *modelled) key(rt *rapid.T) string {
	return fmt.Sprint(rapid.IntRange(0, 5).Draw(rt, "key"))
}

func (m *modelled) charge(h shmstore.Handle, value []byte) {
	for i, alive := range m.alive {
		if alive {
			m.owed = append(m.owed, owed{i, h, value})
		}
	}
}

func (m *modelled) put(rt *rapid.T) {
	key, size := m.key(rt), rapid.IntRange(0, 4000).Draw(rt, "size")
	m.n++
	value := block(m.n, size)
	there := m.store.IsCached(key)
	h, err := m.store.Put(key, value)
	switch {
	case there != errors.Is(err, keyed.ErrExists):
		rt.Fatalf("put of a key that exists (%t): %v", there, err)
	case err == nil:
		m.values[key] = value
		m.charge(h, value)
	case !there && !errors.Is(err, shmstore.ErrFull):
		rt.Fatal(err)
	}
}

func (m *modelled) cached(rt *rapid.T) {
	key := m.key(rt)
	h, err := m.store.GetCached(key)
	value, was := m.values[key]
	switch {
	case err == nil && !was:
		rt.Fatalf("a handle of %s, which has no value", key)
	case err == nil:
		m.charge(h, value)
	case !errors.Is(err, keyed.ErrNotFound):
		rt.Fatal(err)
	}
}

func (m *modelled) delete(rt *rapid.T) {
	key := m.key(rt)
	if err := m.store.Delete(key); err != nil && !errors.Is(err, keyed.ErrNotFound) {
		rt.Fatal(err)
	}
	delete(m.values, key)
}

func (m *modelled) collect(rt *rapid.T) {
	if len(m.owed) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.owed)-1).Draw(rt, "owed")
	o := m.owed[i]
	m.owed = slices.Delete(m.owed, i, i+1)
	v, err := m.readers[o.reader].Get(o.handle)
	if err != nil {
		rt.Fatalf("a value that reader %d was charged for: %v", o.reader, err)
	}
	m.held[v], m.of[v] = o.value, o.reader
}

func (m *modelled) release(*rapid.T) {
	for v := range m.held {
		v.Release()
		delete(m.held, v)
		delete(m.of, v)
		return
	}
}

func (m *modelled) die(rt *rapid.T) {
	i := rapid.IntRange(0, len(m.ids)-1).Draw(rt, "reader")
	if !m.alive[i] || i == 0 { // one reader stays
		return
	}
	m.must(rt, m.store.RemoveReader(m.ids[i]))
	for v, reader := range m.of {
		if reader == i { // a dead reader
			delete(m.held, v)
			delete(m.of, v)
			v.Release()
		}
	}
	m.alive[i] = false
	m.owed = slices.DeleteFunc(m.owed, func(o owed) bool { return o.reader == i })
}

func (m *modelled) check(rt *rapid.T) {
	for v, want := range m.held {
		if !bytes.Equal(v.Bytes(), want) {
			rt.Fatal("a value changed while it was read")
		}
	}
	for _, o := range m.owed {
		if key := m.keyOf(o.value); key != "" && !m.store.IsCached(key) {
			rt.Fatalf("the value of %s is gone, and reader %d owes for it", key, o.reader)
		}
	}
	if wrong := m.store.Check(); len(wrong) > 0 {
		rt.Fatal(wrong)
	}
}

// keyOf is the key that has a value now.
func (m *modelled) keyOf(value []byte) string {
	for key, v := range m.values {
		if len(v) > 0 && len(value) > 0 && &v[0] == &value[0] {
			return key
		}
	}
	return ""
}

// TestManyWritersAtOnce: goroutines put and ask for the same keys. Each key is written once, and each handle
// is read by both readers.
func TestManyWritersAtOnce(t *testing.T) {
	const keys, goroutines = 50, 8
	s, readers, _ := cache(t, 1<<20, 2)
	handles := make(chan shmstore.Handle, keys*goroutines)
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := range keys {
				h, err := s.Put(fmt.Sprint(i), block(byte(i), kib))
				for errors.Is(err, keyed.ErrExists) { // until it is written
					if h, err = s.GetCached(fmt.Sprint(i)); errors.Is(err, keyed.ErrNotFound) {
						err = keyed.ErrExists
					}
				}
				if err != nil {
					t.Error(err)
					return
				}
				handles <- h
			}
		})
	}
	wg.Wait()
	close(handles)
	n := 0
	for h := range handles {
		n++
		for _, r := range readers {
			v := get(t, r, h)
			if b := v.Bytes(); len(b) != kib || !bytes.Equal(b, block(b[0], kib)) {
				t.Errorf("%d bytes, or others", len(b))
			}
			v.Release()
		}
	}
	if st := s.Stats(); n != keys*goroutines || st.Puts != keys || st.BytesWritten != keys*kib {
		t.Errorf("%d handles; %+v", n, st)
	}
}
