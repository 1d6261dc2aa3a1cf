//go:build !linux

package shmstore

// Shared memory is made of memfds, which are peculiar to Linux.

func newSharedSegment(segmentKind, int) (*segment, error) { return nil, ErrUnsupported }

func checkHeadroom(uint64) error { return ErrUnsupported }

func (seg *segment) release() { seg.released = true }
