package headroom

import (
	"errors"

	"golang.org/x/sys/unix"
)

const (
	// pieceBytes is how much is allocated at once. Kernels before 6.11 undo all that a
	// call has done when a signal comes, and a profiler sends one every ten
	// milliseconds: a piece takes a fraction of that.
	pieceBytes = 4 << 20
	// maxInterrupts bounds how often one piece is tried.
	maxInterrupts = 64
)

// Allocate gives the first bytes of a file all their pages, so that no access to them
// fails later for want of memory. The error is the system's.
func Allocate(fd int, sizeBytes int64) error { return AllocateAt(fd, 0, sizeBytes) }

// AllocateAt is Allocate for bytes from an offset on.
func AllocateAt(fd int, offset, sizeBytes int64) error {
	return allocate(sizeBytes, func(at, n int64) error { return unix.Fallocate(fd, 0, offset+at, n) })
}

func allocate(sizeBytes int64, piece func(at, n int64) error) error {
	for at := int64(0); at < sizeBytes; at += pieceBytes {
		err := error(unix.EINTR)
		for try := 0; try < maxInterrupts && errors.Is(err, unix.EINTR); try++ {
			err = piece(at, min(pieceBytes, sizeBytes-at))
		}
		if err != nil {
			return err
		}
	}
	return nil
}
