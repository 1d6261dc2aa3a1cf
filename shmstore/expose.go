package shmstore

import "fmt"

// ArenaSegment opens the arena for reading once more, for passing it on to
// processes that read payloads by their offset in it, while another process holds the
// leases for them. The caller closes the segment. The store must be in [Shared] memory;
// else the error is [ErrUnsupported]. Any goroutine may call it.
func (s *Store) ArenaSegment() (*Segment, error) {
	if s.memory != Shared {
		return nil, fmt.Errorf("%w: the store is in %v memory, which no other process can read", ErrUnsupported, s.memory)
	}
	fd, err := duplicateReadOnly(s.arenaSegment.fd)
	if err != nil {
		return nil, fmt.Errorf("expose the arena: %w", err)
	}
	return OpenFillingSegment("arena", fd, int64(len(s.arenaSegment.data)))
}

// ExposeLarge opens the segment of a large object for reading once more, as
// ArenaSegment does for the arena. The caller has a lease on the object. Writer
// only; the errors are those of [Store.LargeSegment].
func (s *Store) ExposeLarge(h Handle) (*Segment, error) {
	fd, sizeBytes, err := s.LargeSegment(h)
	if err != nil {
		return nil, err
	}
	if fd, err = duplicate(fd); err != nil {
		return nil, fmt.Errorf("expose a large object: %w", err)
	}
	return OpenSegment("large", fd, sizeBytes)
}

// Arena is the store's own mapping of the arena, for registering it with a device. Read and
// write objects through leases and reservations only. It stays until the store is closed.
func (s *Store) Arena() []byte { return s.arena }
