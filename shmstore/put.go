package shmstore

import (
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Put copies data into a new object, and charges the given readers with one
// debt each. The errors are those of [Store.Reserve]. Writer only.
func (s *Store) Put(data []byte, charge ReaderSet) (Handle, error) {
	r, err := s.Reserve(len(data), codec.IDRaw, charge)
	if err != nil {
		return Handle{}, fmt.Errorf("put: %w", err)
	}
	codec.Copy(r.Bytes(), data)
	return r.Commit(len(data), 0)
}

// FreeUnused evicts all settled objects, and unmaps the segments that are kept for the next
// large objects. It returns the bytes of the objects it freed. Writer only.
func (s *Store) FreeUnused() (freedBytes int64) {
	if s.closed.Load() {
		return 0
	}
	freedBytes = s.FreeOldest(math.MaxInt64)
	s.dropSpares()
	return freedBytes
}

// FreeOldest evicts settled objects, the oldest first, until at least so many bytes are freed, or none is left. It
// returns the bytes that it freed, which need not be in one piece. Writer only.
func (s *Store) FreeOldest(bytes int64) (freedBytes int64) {
	if s.closed.Load() {
		return 0
	}
	next, more := s.ring.Oldest()
	for more && freedBytes < bytes {
		var n uint64
		next, more, n = s.evictBatch(next, maxCandidates, uint64(bytes-freedBytes), true)
		freedBytes += int64(n)
	}
	return freedBytes
}
