package keyed_test

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// Three objects of a quarter, with their headers, and a smaller one fill the arena of these tests.
const (
	arenaBytes = 16 * kib
	quarter    = arenaBytes / 4
)

// TestLinearAllocation: objects lie one behind the other, in the order in which they were put.
func TestLinearAllocation(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 1)
	var end uint64
	for i := range byte(3) {
		size := (int(i) + 1) * kib
		h := put(t, s, fmt.Sprint(i), block(i, size))
		if h.Offset < end || h.Offset > end+kib || h.Size != uint64(size) {
			t.Errorf("object %d has %d bytes at %d, want %d behind %d", i, h.Size, h.Offset, size, end)
		}
		end = h.Offset + h.Size
		read(t, readers[0], h, block(i, size))
	}
}

// TestWraparound: an object that does not fit behind the youngest lies at the beginning, after the objects there were
// evicted with their keys.
func TestWraparound(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 1)
	handles := make([]shmstore.Handle, 3)
	for i := range handles {
		handles[i] = put(t, s, fmt.Sprint(i), block(byte(i), quarter))
	}
	for i, h := range handles[:2] {
		read(t, readers[0], h, block(byte(i), quarter))
	}
	held := get(t, readers[0], handles[2])
	wrapped := put(t, s, "wrapped", block(9, quarter+kib)) // larger than the rest behind the third
	if wrapped.Offset+wrapped.Size > handles[2].Offset {
		t.Errorf("it lies at %d, and the object that is read at %d", wrapped.Offset, handles[2].Offset)
	}
	if s.IsCached("0") || s.IsCached("1") || !s.IsCached("2") {
		t.Error("two objects were to go, and the one that is read to stay")
	}
	if b := held.Bytes(); len(b) != quarter || slices.Max(b) != 2 || slices.Min(b) != 2 {
		t.Error("an object changed while it was read")
	}
	held.Release()
	read(t, readers[0], wrapped, block(9, quarter+kib))
	_, err := readers[0].Get(handles[0])
	wantErr(t, "the handle of an object that went", err, shmstore.ErrStale)
}

// TestOutOfSpace: if readers need all objects, a put fails, and the error names the readers and how much they hold. The
// objects stay, the new key is free, and with free space the put succeeds.
func TestOutOfSpace(t *testing.T) {
	s, readers, ids := cache(t, arenaBytes, 2)
	handles := make([]shmstore.Handle, 3)
	for i := range handles {
		handles[i] = put(t, s, fmt.Sprint(i), block(byte(i), quarter))
		read(t, readers[1], handles[i], block(byte(i), quarter)) // the other never releases
	}
	for range 2 {
		_, err := s.Put("more", block(9, quarter))
		var full *shmstore.FullError
		if !errors.As(err, &full) {
			t.Fatalf("put into a full store: %v", err)
		}
		if len(full.Holders) != 1 || full.Holders[0].Reader != ids[0] || full.Holders[0].Objects != 3 || full.Holders[0].Bytes < 3*quarter {
			t.Errorf("held by %v, want three objects of reader %d", full.Holders, ids[0])
		}
		if name := fmt.Sprintf("reader %d (process ", ids[0]); !strings.Contains(err.Error(), name) {
			t.Errorf("%v does not name %q", err, name)
		}
		if freed := s.FreeUnused(math.MaxInt64); freed != 0 || s.IsCached("more") {
			t.Errorf("%d bytes were freed of a store full of charged objects; is the key there: %t", freed, s.IsCached("more"))
		}
	}
	for i, h := range handles {
		read(t, readers[0], h, block(byte(i), quarter))
	}
	more := put(t, s, "more", block(9, quarter))
	for _, r := range readers {
		read(t, r, more, block(9, quarter))
	}
}

// outdated is a serializer whose Size is outdated, because the value has changed since.
type outdated struct {
	codec.RawSerializer
	by int
}

func (o outdated) Size(v any) (int, bool) {
	n, ok := o.RawSerializer.Size(v)
	return n - o.by, ok
}

// EncodeInto writes the value with its present length.
func (o outdated) EncodeInto(dst []byte, v any) error { return o.RawSerializer.EncodeInto(dst, v) }

// TestValueOfChangingSizeIsRefused: a value that grows or shrinks while it is put is a named error, and nothing is left.
func TestValueOfChangingSizeIsRefused(t *testing.T) {
	for _, by := range []int{1, -1} {
		s, err := keyed.Create(keyed.Options{Store: shmstore.Options{ArenaBytes: arenaBytes}, Serializer: outdated{by: by}})
		if err != nil {
			t.Fatal(err)
		}
		r, _ := reader(t, s)
		_, err = s.Put("k", block(1, kib))
		var size *codec.SizeError
		if !errors.As(err, &size) || !strings.Contains(err.Error(), `"k"`) {
			t.Errorf("put of a value that has changed: %v", err)
		}
		s.FreeUnused(math.MaxInt64)
		if st := s.Stats(); st.Objects != 0 || st.Keys != 0 || st.Puts != 0 {
			t.Errorf("%+v", st)
		}
		if err := errors.Join(r.Close(), s.Close()); err != nil {
			t.Error(err)
		}
	}
}

// TestLongestKey: a key of MaxKeyBytes works like others.
func TestLongestKey(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 1)
	key := strings.Repeat("k", keyed.MaxKeyBytes)
	read(t, readers[0], put(t, s, key, block(1, kib)), block(1, kib))
	if !s.IsCached(key) || s.IsCached(key[1:]) {
		t.Error("a long key is not found, or another is")
	}
	for _, bad := range []string{"", key + "k"} {
		_, err := s.Put(bad, block(1, kib))
		wantErr(t, "Put", err, keyed.ErrKey)
		_, err = s.GetCached(bad)
		wantErr(t, "GetCached", err, keyed.ErrNotFound)
		wantErr(t, "Touch", s.Touch(bad), keyed.ErrNotFound)
		wantErr(t, "Delete", s.Delete(bad), keyed.ErrNotFound)
	}
}

// TestForgedHandles: a handle with another value in any field gets no value, and settles no charge.
func TestForgedHandles(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 1)
	h := put(t, s, "k", block(1, kib))
	other := put(t, s, "l", block(2, 2*kib))
	for name, tt := range map[string]struct {
		forge func(h *shmstore.Handle)
		want  error
	}{
		"store":            {func(h *shmstore.Handle) { h.Store++ }, shmstore.ErrCorrupt},
		"generation":       {func(h *shmstore.Handle) { h.Gen += 100 }, shmstore.ErrStale},
		"no generation":    {func(h *shmstore.Handle) { h.Gen = 0 }, shmstore.ErrCorrupt},
		"offset":           {func(h *shmstore.Handle) { h.Offset += 64 }, shmstore.ErrCorrupt},
		"offset behind":    {func(h *shmstore.Handle) { h.Offset = math.MaxUint64 }, shmstore.ErrCorrupt},
		"size":             {func(h *shmstore.Handle) { h.Size-- }, shmstore.ErrCorrupt},
		"size behind":      {func(h *shmstore.Handle) { h.Size = math.MaxUint64 }, shmstore.ErrCorrupt},
		"slot of another":  {func(h *shmstore.Handle) { h.Slot = other.Slot }, shmstore.ErrStale},
		"slot behind":      {func(h *shmstore.Handle) { h.Slot = math.MaxUint32 }, shmstore.ErrCorrupt},
		"slot never used":  {func(h *shmstore.Handle) { h.Slot += 2 }, shmstore.ErrStale},
		"codec":            {func(h *shmstore.Handle) { h.Codec++ }, shmstore.ErrCorrupt},
		"nothing is right": {func(h *shmstore.Handle) { *h = shmstore.Handle{} }, shmstore.ErrCorrupt},
	} {
		forged := h
		tt.forge(&forged)
		_, err := readers[0].Get(forged)
		wantErr(t, "Get with another "+name, err, tt.want)
		wantErr(t, "Drop with another "+name, readers[0].Drop(forged), tt.want)
	}
	read(t, readers[0], h, block(1, kib))
	read(t, readers[0], other, block(2, 2*kib))
}

// TestFreedSpaceIsJoined: after objects of many sizes were put and freed, an object as large as the arena allows fits.
func TestFreedSpaceIsJoined(t *testing.T) {
	s, err := keyed.Create(keyed.Options{
		Store:      shmstore.Options{ArenaBytes: arenaBytes, MaxObjectBytes: arenaBytes - 64},
		Serializer: codec.RawSerializer{},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	for i := range 200 {
		put(t, s, fmt.Sprint(i), block(byte(i), 1+i*37%(5*kib)))
	}
	s.FreeUnused(math.MaxInt64)
	put(t, s, "all", block(1, arenaBytes-64))
}

// TestObjectStaysUntilLastCharge: an object that was put and asked for stays until the last reader has settled both
// charges.
func TestObjectStaysUntilLastCharge(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 3)
	h := put(t, s, "key", block(1, kib))
	if _, err := s.GetCached("key"); err != nil {
		t.Fatal(err)
	}
	for i, r := range []int{0, 1, 2, 0, 1, 2} {
		if freed := s.FreeUnused(math.MaxInt64); freed != 0 {
			t.Errorf("%d bytes were freed after %d of 6 charges", freed, i)
		}
		read(t, readers[r], h, block(1, kib))
	}
	if freed := s.FreeUnused(math.MaxInt64); freed < kib {
		t.Errorf("%d bytes were freed after the last charge", freed)
	}
}

// TestPutAfterClear: a key that was cleared is put again, and its old handle stays stale.
func TestPutAfterClear(t *testing.T) {
	s, readers, _ := cache(t, arenaBytes, 1)
	old := put(t, s, "key", block(1, kib))
	read(t, readers[0], old, block(1, kib))
	if err := s.Clear(); err != nil {
		t.Fatal(err)
	}
	again := put(t, s, "key", block(2, kib))
	if again.Slot != old.Slot {
		t.Errorf("slot %d, want %d, which was free", again.Slot, old.Slot)
	}
	_, err := readers[0].Get(old)
	wantErr(t, "the handle of a value that was cleared", err, shmstore.ErrStale)
	read(t, readers[0], again, block(2, kib))
}
