package headroom

import (
	"errors"

	"golang.org/x/sys/unix"
)

const (
	// pieceBytes is how much is allocated by one call. In kernels before 6.11 a signal
	// undoes all the work of a call, and a profiler sends one every ten milliseconds: a
	// piece takes a fraction of that.
	pieceBytes = 4 << 20
	// maxInterrupts bounds the tries for one piece.
	maxInterrupts = 64
)

// Allocate allocates all pages of the first bytes of a file, so that no access to them
// fails later for lack of memory. The error is one of the system.
func Allocate(fd int, sizeBytes int64) error { return AllocateAt(fd, 0, sizeBytes) }

// AllocateAt is Allocate for the bytes from an offset on.
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
