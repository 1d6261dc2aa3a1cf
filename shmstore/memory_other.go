//go:build !linux

package shmstore

// Shared memory is made of memfds, which are peculiar to Linux.

func newSharedSegment(string, int) (*segment, error) { return nil, ErrUnsupported }

func newEmptySegment(string, int) (*segment, error) { return nil, ErrUnsupported }

func (seg *segment) populate(int) error { return ErrUnsupported }

func (seg *segment) mapWritable(int) error { return ErrUnsupported }

func openSegment(string, int, int) (*segment, error) { return nil, ErrUnsupported }

func openFillingSegment(string, int, int) (*segment, error) { return nil, ErrUnsupported }

func (seg *segment) filledFrom(offset int64) int64 { return offset }

func openLargeSegment(int, uint64) (*segment, error) { return nil, ErrUnsupported }

func checkHeadroom(uint64) error { return ErrUnsupported }

func checkSegmentHeadroom(uint64) error { return ErrUnsupported }

func (seg *segment) release() { seg.released = true }
