package keyed

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/lockorder"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// MaxKeyBytes is the longest key.
const MaxKeyBytes = 1024

// Errors of a [Store], and of a [Reader].
var (
	// ErrExists reports a key that has a value, or is being put. GetCached returns its handle.
	ErrExists = errors.New("the key exists")
	// ErrNotFound reports a key that has no value: it was not put, was deleted, or its object was evicted.
	ErrNotFound = errors.New("nothing under this key")
	// ErrKey reports a key that is empty or too long.
	ErrKey = errors.New("bad key")
	// ErrInUse reports a path at which another store listens.
	ErrInUse = errors.New("another store listens there")
	// ErrOwnerGone reports to a reader that the store's process is dead, has closed the store, or has removed the
	// reader. Values that the reader has got stay readable. To read a new store at the same path, call Dial again.
	ErrOwnerGone = errors.New("the owner of the store is gone")
)

// Options configure [Create]. The zero value works.
type Options struct {
	// Store configures the underlying store. All objects lie in its arena: the largest has MaxObjectBytes, or by
	// default a quarter of the arena.
	Store shmstore.Options
	// Serializer encodes values; nil is [codec.MsgpackSerializer].
	Serializer codec.Serializer
}

// Store is the writer's side: values under keys.
type Store struct {
	serializer codec.Serializer

	writer  lockorder.Right[lockorder.KeyedWriter] // its holder reads and writes the fields below
	store   *shmstore.Store
	readers shmstore.ReaderSet
	conns   map[*net.UnixConn]shmstore.ReaderID // of readers; 0 while a reader is being admitted
	byKey   map[string]*entry
	bySlot  map[uint32]*entry // the entry whose object has, or had, the slot
	stats   Stats

	closing    chan struct{}    // closed by Close, with the writer's right
	listeners  []*peer.Listener // added with the right, until closing is closed
	goroutines sync.WaitGroup   // of listeners and readers, added until closing is closed
}

// entry is a key, and its object once that is put.
type entry struct {
	key    string
	handle shmstore.Handle // zero: the value is being encoded
}

// Create makes an empty store. The errors are those of [shmstore.Create].
func Create(opts Options) (*Store, error) {
	o := opts.Store
	o.MaxLargeBytes = -1 // readers map the arena alone
	o.LargeObjectBytes = cmp.Or(o.LargeObjectBytes, o.MaxObjectBytes)
	store, err := shmstore.Create(o)
	if err != nil {
		return nil, fmt.Errorf("keyed: %w", err)
	}
	s := &Store{
		serializer: opts.Serializer,
		store:      store,
		conns:      make(map[*net.UnixConn]shmstore.ReaderID),
		byKey:      make(map[string]*entry),
		bySlot:     make(map[uint32]*entry),
		closing:    make(chan struct{}),
	}
	if s.serializer == nil {
		s.serializer = codec.MsgpackSerializer{}
	}
	return s, nil
}

// Put encodes a value into the store, under a new key, and charges each reader once. With a serializer that is a
// [codec.Sizer] the value is encoded in place.
func (s *Store) Put(key string, value any) (shmstore.Handle, error) {
	h, err := s.put(key, value)
	if err != nil {
		return shmstore.Handle{}, fmt.Errorf("keyed: put %.64q: %w", key, err)
	}
	return h, nil
}

func (s *Store) put(key string, value any) (h shmstore.Handle, err error) {
	if key == "" || len(key) > MaxKeyBytes {
		return h, fmt.Errorf("%w: it has %d bytes, and takes 1 to %d", ErrKey, len(key), MaxKeyBytes)
	}
	e, err := s.claim(key)
	if err != nil {
		return h, err
	}
	defer func() {
		if h.IsZero() { // also when the serializer panics
			s.releaseClaim(e)
		}
	}()
	size, fill, err := s.planEncoding(value)
	if err != nil {
		return h, err
	}
	r, err := s.reserve(size)
	if err != nil {
		return h, err
	}
	filled := false
	defer func() {
		if !filled {
			r.Abort()
		}
	}()
	if err := fill(r.Bytes()); err != nil {
		return h, err
	}
	filled = true
	return s.commit(e, r, size)
}

// claim adds an entry for a key without a value.
func (s *Store) claim(key string) (*entry, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if old := s.byKey[key]; old != nil && (old.handle.IsZero() || s.store.Charge(old.handle, 0) == nil) {
		return nil, ErrExists
	}
	e := &entry{key: key}
	s.byKey[key] = e
	return e, nil
}

// planEncoding returns the encoded size of a value, and the function that writes the bytes.
func (s *Store) planEncoding(value any) (size int, fill func(dst []byte) error, err error) {
	if sizer, ok := s.serializer.(codec.Sizer); ok {
		if size, ok := sizer.Size(value); ok {
			return size, func(dst []byte) error { return sizer.EncodeInto(dst, value) }, nil
		}
	}
	payload, err := s.serializer.Append(nil, value)
	return len(payload), func(dst []byte) error { codec.Copy(dst, payload); return nil }, err
}

func (s *Store) reserve(size int) (shmstore.Reservation, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	r, err := s.store.Reserve(size, s.serializer.ID(), s.readers)
	if errors.Is(err, shmstore.ErrQuarantined) {
		s.disconnectQuarantined()
		r, err = s.store.Reserve(size, s.serializer.ID(), s.readers)
	}
	return r, err
}

// disconnectQuarantined closes the connections of readers that have settled more than they owed, and charges them no
// more. The caller has the writer's right.
func (s *Store) disconnectQuarantined() {
	bad := s.store.Stats().Quarantined
	s.readers &^= bad
	for conn, id := range s.conns {
		if bad.Has(id) {
			_ = conn.Close() // Store.watch removes the reader
		}
	}
}

// commit publishes an object under its key. If another object had its slot before, that object was evicted, and commit
// removes its key.
func (s *Store) commit(e *entry, r shmstore.Reservation, size int) (shmstore.Handle, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	h, err := r.Commit(size, 0)
	if err != nil {
		return h, err
	}
	if old := s.bySlot[h.Slot]; old != nil {
		s.removeEntry(old)
	}
	s.bySlot[h.Slot], e.handle = e, h
	s.stats.Puts++
	s.stats.BytesWritten += h.Size
	if s.byKey[e.key] != e { // deleted meanwhile: charged readers may still read the object
		delete(s.bySlot, h.Slot)
	}
	return h, nil
}

// removeEntry removes a key, unless the key has another entry now. The caller has the writer's right.
func (s *Store) removeEntry(e *entry) {
	if s.byKey[e.key] == e {
		delete(s.byKey, e.key)
	}
	if s.bySlot[e.handle.Slot] == e {
		delete(s.bySlot, e.handle.Slot)
	}
}

func (s *Store) releaseClaim(e *entry) {
	s.writer.Lock()
	defer s.writer.Unlock()
	s.removeEntry(e)
}

// GetCached returns the handle of the value under a key, and charges each reader once more. The error is
// [ErrNotFound] where there is none.
func (s *Store) GetCached(key string) (shmstore.Handle, error) {
	h, err := s.find(key, true)
	if err != nil {
		return h, fmt.Errorf("keyed: get %.64q: %w", key, err)
	}
	return h, nil
}

// Touch charges each reader once more for the value under a key, for a handle that they have, or will be sent.
func (s *Store) Touch(key string) error {
	if _, err := s.find(key, true); err != nil {
		return fmt.Errorf("keyed: touch %.64q: %w", key, err)
	}
	return nil
}

// IsCached reports whether there is a value under a key. The next Put may evict it.
func (s *Store) IsCached(key string) bool {
	_, err := s.find(key, false)
	return err == nil
}

// find returns the handle of the value under a key, and charges the readers for it if charge is true.
func (s *Store) find(key string, charge bool) (h shmstore.Handle, err error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	e := s.byKey[key]
	if e == nil || e.handle.IsZero() {
		err = ErrNotFound
	} else if err = s.charge(e.handle, charge); errors.Is(err, shmstore.ErrStale) {
		s.removeEntry(e)
		err = ErrNotFound
	}
	switch {
	case !charge:
	case err == nil:
		s.stats.Hits++
		s.stats.BytesSaved += e.handle.Size
	case errors.Is(err, ErrNotFound):
		s.stats.Misses++
	}
	if err != nil {
		return h, err
	}
	return e.handle, nil
}

// charge charges the readers for an object if charge is true, and else only checks that the object is live. The caller
// has the writer's right.
func (s *Store) charge(h shmstore.Handle, charge bool) error {
	if !charge {
		return s.store.Charge(h, 0)
	}
	err := s.store.Charge(h, s.readers)
	if errors.Is(err, shmstore.ErrQuarantined) {
		s.disconnectQuarantined()
		err = s.store.Charge(h, s.readers)
	}
	return err
}

// Delete removes a key. Its object is freed at once if no reader owes for it or reads it, and else when its space is
// needed.
func (s *Store) Delete(key string) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	e := s.byKey[key]
	if e == nil {
		return fmt.Errorf("keyed: delete %.64q: %w", key, ErrNotFound)
	}
	return s.evict(e)
}

// Clear removes all keys. Objects that readers read or were charged for stay; all others are freed at once.
func (s *Store) Clear() error {
	s.writer.Lock()
	defer s.writer.Unlock()
	var errs []error
	for _, e := range s.byKey {
		errs = append(errs, s.evict(e))
	}
	return errors.Join(errs...)
}

func (s *Store) evict(e *entry) error {
	s.removeEntry(e)
	if e.handle.IsZero() {
		return nil
	}
	if _, err := s.store.Evict(e.handle); err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	return nil
}

// FreeUnused frees objects that no reader owes for or reads, the oldest first, until it has freed at least so many bytes,
// or none is left; with math.MaxInt64 it frees all. It returns the bytes that it freed, which need not be in one piece.
// Put itself frees the space that it needs.
func (s *Store) FreeUnused(bytes int64) (freedBytes int64) {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.store.FreeOldest(bytes)
}

// Stats are the present figures, and totals since the store was made.
type Stats struct {
	shmstore.Stats
	Keys         int // the objects of some may be evicted already
	Puts         uint64
	Hits         uint64 // of GetCached and Touch
	Misses       uint64 // of GetCached and Touch
	BytesWritten uint64
	BytesSaved   uint64 // of values that were not written again
}

// Stats returns the figures.
func (s *Store) Stats() Stats {
	s.writer.Lock()
	defer s.writer.Unlock()
	st := s.stats
	st.Stats, st.Keys = s.store.Stats(), len(s.byKey)
	return st
}

// Check returns the broken invariants of the underlying store: none, unless there is a bug or a peer broke the rules.
func (s *Store) Check() []shmstore.Violation {
	s.writer.Lock()
	defer s.writer.Unlock()
	return s.store.Check()
}
