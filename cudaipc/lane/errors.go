package lane

import (
	"errors"
	"fmt"
)

// The errors of this package, beside those of package cudaipc.
var (
	// ErrPoisoned reports tensors that will never be complete: their sender or its GPU failed
	// before the copies were done. Bytes that were read of them are garbage. With ErrNotPublished
	// or ErrStaleHandle beside it, no bytes were read: when the message was opened, its sender was
	// dead, or had freed the lent memory.
	ErrPoisoned = errors.New("tensors were never completed")
	// ErrForged reports a position in device memory that does not exist, or that belongs to another
	// generation than the message says.
	ErrForged = errors.New("no such place in device memory")
	// ErrForeignDevice reports tensors on a GPU that this process cannot see.
	ErrForeignDevice = errors.New("GPU is not visible to this process")
	// ErrNoLane reports tensors on a GPU in a process without a lane.
	ErrNoLane = errors.New("no GPU lane in this process")
	// ErrTooMany reports that too many messages are open at once.
	ErrTooMany = errors.New("too many messages are open")
	// ErrPoolFull reports that the pool had no space until the deadline, where the policy is to
	// fail.
	ErrPoolFull = errors.New("GPU pool is full")
	// ErrClosed reports the use of a lane or a message that was closed.
	ErrClosed = errors.New("GPU lane: closed")
)

// errMessageClosed reports the use of a message after its Close.
var errMessageClosed = fmt.Errorf("%w: the message was closed, and its tensors were released", ErrClosed)
