package shmstore

import (
	"errors"
	"fmt"
	"strings"
)

// The errors of this package. Test with errors.Is; a type that is named
// carries the details and is found with errors.As.
var (
	// ErrFull reports that space or slots ran out and nothing could be
	// evicted. It is normal flow: wait for space, fail or drop. See [FullError].
	ErrFull = errors.New("store is full")
	// ErrTooLarge reports an object above Options.MaxObjectBytes.
	ErrTooLarge = errors.New("object is too large")
	// ErrSize reports a size that is negative, or not positive where it must
	// be, or a commit beyond the reservation.
	ErrSize = errors.New("invalid size")
	// ErrStale reports a handle whose object is gone.
	ErrStale = errors.New("object is gone")
	// ErrCorrupt reports a handle that does not agree with the directory.
	ErrCorrupt = errors.New("corrupt handle")
	// ErrNoDebt reports a delivery collected by a reader that was not
	// charged for it, or that has collected everything it was charged for.
	ErrNoDebt = errors.New("no debt to collect")
	// ErrOwnerStalled reports an owner that stopped in the middle of an
	// eviction, most likely because it died.
	ErrOwnerStalled = errors.New("store owner stalled")
	// ErrClosed reports the use of a closed store or segment, or of a
	// removed reader.
	ErrClosed = errors.New("store is closed")
	// ErrBusy reports a close that had to leave the memory mapped, because
	// leases or reservations of this process still point into it.
	ErrBusy = errors.New("store is in use")
	// ErrSegment reports a large object whose segment this process was not
	// given. See [Reader.AddSegment].
	ErrSegment = errors.New("segment of a large object is missing")
	// ErrUnsupported reports memory or an operation this platform lacks.
	ErrUnsupported = errors.New("not supported on this platform")
	// ErrMemory reports that the machine or a control group has not enough
	// free memory. See [MemoryError].
	ErrMemory = errors.New("not enough free memory")
	// ErrTooManyReaders reports that all reader indexes are in use.
	ErrTooManyReaders = errors.New("too many readers")
	// ErrUnknownReader reports the index of no present reader.
	ErrUnknownReader = errors.New("unknown reader")
	// ErrQuarantined reports a reader that settled more than it owed. Its
	// objects stay until it is removed.
	ErrQuarantined = errors.New("reader is quarantined")
	// ErrProtocol reports bytes or descriptors from a peer that break the
	// rules of attaching, or of sharing a segment.
	ErrProtocol = errors.New("protocol of shared memory violated")
	// ErrOptions reports options that contradict each other.
	ErrOptions = errors.New("invalid store options")
)

// Resource is the resource that a full store ran out of.
type Resource string

// The resources that can run out.
const (
	ResourceRoom  Resource = "room"
	ResourceSlots Resource = "slots"
	ResourceLarge Resource = "segments of large objects"
	// ResourceDevice is space in the memory of a [Device].
	ResourceDevice Resource = "device"
)

// maxHoldersInText bounds the text of a [FullError]; Holders has them all.
const maxHoldersInText = 4

// FullError names the resource that ran out and the readers that hold it. It matches
// [ErrFull].
type FullError struct {
	Resource      Resource
	NeededBytes   int      // of the object that found no space
	FreeBytes     int64    // in the arena, not necessarily in one piece
	FreeSlots     int      // of the directory
	LargeBytes    int64    // in the segments of large objects
	Reserved      int      // objects granted and neither committed nor aborted
	ReservedBytes int64    // their bytes
	Holders       []Holder // readers that hold objects, the largest first

	// Memory is the reason for which a store that takes its memory as it fills it got no
	// more; nil: it asked for none. The error unwraps to it.
	Memory error

	// With ResourceDevice, reservations and holders are those with a piece of this
	// device, and the first holder has most of it.
	NeededDeviceBytes int64 // of the piece that found no space
	Pieces            int   // of the device, held by objects
	PieceBytes        int64 // of these, as they were asked for
}

func (e *FullError) Error() string {
	var b strings.Builder
	if e.Resource == ResourceDevice {
		fmt.Fprintf(&b, "%v: no room on the device for %d bytes (%d bytes in %d pieces held", ErrFull, e.NeededDeviceBytes, e.PieceBytes, e.Pieces)
	} else {
		fmt.Fprintf(&b, "%v: no %s for %d bytes (%d bytes and %d slots free", ErrFull, e.Resource, e.NeededBytes, e.FreeBytes, e.FreeSlots)
	}
	if e.LargeBytes > 0 {
		fmt.Fprintf(&b, "; %d bytes in large objects", e.LargeBytes)
	}
	if e.Reserved > 0 {
		fmt.Fprintf(&b, "; %d uncommitted objects of %d bytes", e.Reserved, e.ReservedBytes)
	}
	for i, h := range e.Holders {
		if i == maxHoldersInText {
			fmt.Fprintf(&b, "; and %d more readers", len(e.Holders)-i)
			break
		}
		fmt.Fprintf(&b, "; %v", h)
	}
	b.WriteByte(')')
	if e.Memory != nil {
		fmt.Fprintf(&b, ": %v", e.Memory)
		return b.String()
	}
	b.WriteString(": release leases, or give the store more room")
	return b.String()
}

// Unwrap returns the reason for which there was no memory.
func (e *FullError) Unwrap() error { return e.Memory }

// Is makes errors.Is(err, ErrFull) true.
func (e *FullError) Is(target error) bool { return target == ErrFull }

// MemoryError gives the figures behind a refusal. It matches [ErrMemory].
type MemoryError struct {
	NeededBytes    uint64
	AvailableBytes uint64 // the memory that the limit leaves now
	KeepBytes      uint64 // the part of it that is never used
	Limit          string // the file the limit was read from
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%v: %d bytes needed, %d available by %s of which %d are kept back: make the store smaller or raise the limit",
		ErrMemory, e.NeededBytes, e.AvailableBytes, e.Limit, e.KeepBytes)
}

// Is makes errors.Is(err, ErrMemory) true.
func (e *MemoryError) Is(target error) bool { return target == ErrMemory }

// errForeign refuses a handle of another store.
var errForeign = fmt.Errorf("%w: it is of another store", ErrCorrupt)
