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

// FreeUnused evicts all settled objects. Segments that are kept for the next large
// objects go, too. It returns the bytes of the objects it freed. Writer only.
func (s *Store) FreeUnused() (freedBytes int64) {
	if s.closed.Load() {
		return 0
	}
	next, more := s.ring.Oldest()
	for more {
		var n uint64
		next, more, n = s.step(next, maxCandidates, math.MaxUint64, true)
		freedBytes += int64(n)
	}
	s.dropSpares()
	return freedBytes
}
