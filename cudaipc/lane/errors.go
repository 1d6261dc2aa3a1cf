package lane

import (
	"errors"
	"fmt"
)

// What a caller may be told, beside the errors of package cudaipc.
var (
	// ErrPoisoned reports tensors that will never be complete: whoever filled
	// them failed, or died before it was done. What was read of them is garbage. With
	// ErrNotPublished or ErrStaleHandle beside it, they were not read at all: when
	// their message was opened, their sender was dead, or had freed what it had lent.
	ErrPoisoned = errors.New("tensors were never completed")
	// ErrForged reports a place in device memory that cannot be, or that belongs
	// to another generation than the message says.
	ErrForged = errors.New("no such place in device memory")
	// ErrForeignDevice reports tensors on a GPU that this process cannot see.
	ErrForeignDevice = errors.New("GPU is not visible to this process")
	// ErrNoLane reports tensors on a GPU in a process without a lane.
	ErrNoLane = errors.New("no GPU lane in this process")
	// ErrTooMany reports that too many messages are open at once.
	ErrTooMany = errors.New("too many messages are open")
	// ErrPoolFull reports that the pool had no room until the deadline, where
	// the policy is to fail.
	ErrPoolFull = errors.New("GPU pool is full")
	// ErrClosed reports the use of a lane or a message that was closed.
	ErrClosed = errors.New("GPU lane: closed")
)

// errGivenBack is what whoever uses a message after its end is told.
var errMessageClosed = fmt.Errorf("%w: the message was given back, and its tensors with it", ErrClosed)
