package shmstore

import (
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/codec"
)

// maxKeptBytes bounds the buffer kept for values that cannot be encoded in
// place.
const maxKeptBytes = 1 << 20

// Put copies data into a new object, and charges the given readers with one
// debt each. A key names the object for [Store.GetCached] until the object is
// deleted or evicted; the empty key names nothing. If the key has an object,
// the error is [ErrExists]: use GetCached to refer to it once more. The other
// errors are those of [Store.Reserve]. Writer only.
func (s *Store) Put(key string, data []byte, charge ReaderSet) (Handle, error) {
	return s.put(key, len(data), codec.IDRaw, charge, func(dst []byte) error {
		codec.Copy(dst, data)
		return nil
	})
}

// PutVec is Put for data in several pieces, which become one object. Writer
// only.
func (s *Store) PutVec(key string, bufs [][]byte, charge ReaderSet) (Handle, error) {
	size := 0
	for _, b := range bufs {
		size += len(b) // cannot overflow: the pieces are in memory
		if uint64(size) > s.geo.maxObject {
			break // the same piece may be listed often enough to overflow
		}
	}
	return s.put(key, size, codec.IDRaw, charge, func(dst []byte) error {
		for _, b := range bufs {
			dst = dst[codec.Copy(dst, b):]
		}
		return nil
	})
}

// PutValue is Put for a value, encoded by the store's serializer: in place if
// the serializer can tell the size beforehand. Writer only.
func (s *Store) PutValue(key string, v any, charge ReaderSet) (Handle, error) {
	id := s.serializer.ID()
	if sizer, ok := s.serializer.(codec.Sizer); ok {
		if size, ok := sizer.Size(v); ok {
			return s.put(key, size, id, charge, func(dst []byte) error {
				return sizer.EncodeInto(dst, v)
			})
		}
	}
	encoded, err := s.serializer.Append(s.encodeBuffer[:0], v)
	if err != nil {
		return Handle{}, fmt.Errorf("put value: %w", err)
	}
	if cap(encoded) <= maxKeptBytes {
		s.encodeBuffer = encoded
	}
	return s.put(key, len(encoded), id, charge, func(dst []byte) error {
		codec.Copy(dst, encoded)
		return nil
	})
}

// put makes an object of size bytes with what fill writes into it.
func (s *Store) put(key string, size int, c codec.ID, charge ReaderSet, fill func(dst []byte) error) (Handle, error) {
	if err := s.mayReserve(size, charge); err != nil {
		return Handle{}, fmt.Errorf("put %q, %d bytes: %w", key, size, err)
	}
	if _, taken := s.keys[key]; taken && key != "" {
		return Handle{}, fmt.Errorf("put %q: %w", key, ErrExists)
	}
	r, err := s.reserve(size, c, charge)
	if err != nil {
		return Handle{}, fmt.Errorf("put %q: %w", key, err)
	}
	if err := r.fill(fill); err != nil {
		return Handle{}, fmt.Errorf("put %q: %w", key, err)
	}
	if key != "" {
		s.keys[key] = r.slot
		s.records[r.slot].key = key
	}
	return r.Commit(size, 0)
}

// fill has a function fill the reservation, and gives it back if that fails or, like a
// serializer of others, panics.
func (r *Reservation) fill(with func(dst []byte) error) (err error) {
	filled := false
	defer func() {
		if !filled {
			r.Abort()
		}
	}()
	err = with(r.Bytes())
	filled = err == nil
	return err
}

// GetCached refers to the object of a key once more: it charges the given
// readers again and returns the handle to send to them. It reports false if
// the key has no object, and charges nobody then, nor if one of the readers
// cannot be charged; [Store.Touch] and a put say why. Writer only.
func (s *Store) GetCached(key string, charge ReaderSet) (Handle, bool) {
	slot, ok := s.keys[key]
	if !ok || s.closed.Load() || s.mayRecharge(slot, charge) != nil {
		return Handle{}, false
	}
	s.recharge(slot, charge)
	return s.handle(slot), true
}

// Touch charges the given readers again, for an object that is delivered once
// more. The errors are [ErrStale], [ErrCorrupt], [ErrForeign], [ErrClosed]
// and a [*ReaderError], which names those to leave out; or [ErrFull] if the local
// reader owes 2^30 deliveries of it. Writer only.
func (s *Store) Touch(h Handle, charge ReaderSet) error {
	_, err := s.record(h)
	if err == nil {
		err = s.mayRecharge(h.Slot, charge)
	}
	if err != nil {
		return fmt.Errorf("touch %v: %w", h, err)
	}
	s.recharge(h.Slot, charge)
	return nil
}

// Delete takes away the object's name at once, and its room as soon as the
// last lease on it is gone: now, or in a later scan. Until its room is used
// again, its handle stays good. The errors are those of [Store.Touch]. Writer
// only.
func (s *Store) Delete(h Handle) error {
	rec, err := s.record(h)
	if err != nil {
		return fmt.Errorf("delete %v: %w", h, err)
	}
	s.unname(rec)
	s.evictSlot(h.Slot)
	return nil
}

// DeleteKey is Delete by name. The error is [ErrNotFound] or [ErrClosed].
// Writer only.
func (s *Store) DeleteKey(key string) error {
	if s.closed.Load() {
		return fmt.Errorf("delete %q: %w", key, ErrClosed)
	}
	slot, ok := s.keys[key]
	if !ok {
		return fmt.Errorf("delete %q: %w", key, ErrNotFound)
	}
	s.unname(&s.records[slot])
	s.evictSlot(slot)
	return nil
}

// Clear deletes every object and returns the number of those that stay for
// now, because they are held or not committed yet. Writer only.
func (s *Store) Clear() (left int) {
	if s.closed.Load() {
		return s.inUse
	}
	s.forgetKeys()
	s.evictAll(math.MaxUint64)
	s.dropSpares()
	return s.inUse
}

// FreeUnused evicts settled objects, the oldest first, until targetBytes of
// room were freed or none is left. A target of zero or less means all. Segments that are
// kept for the next large objects go, too. It returns the bytes of the objects it freed.
// Writer only.
func (s *Store) FreeUnused(targetBytes int64) (freedBytes int64) {
	if s.closed.Load() {
		return 0
	}
	if targetBytes <= 0 {
		targetBytes = math.MaxInt64
	}
	freed := s.evictAll(uint64(targetBytes))
	s.dropSpares()
	return int64(freed)
}

func (s *Store) unname(rec *record) {
	if rec.key != "" {
		delete(s.keys, rec.key)
		rec.key = ""
	}
}

func (s *Store) forgetKeys() {
	clear(s.keys)
	for slot := range s.records {
		s.records[slot].key = ""
	}
}
