package lane

import (
	"context"
	"errors"
)

// What a [Directory] says no with. Test with errors.Is. An argument that makes no
// sense is ErrInvalid of package cudaipc.
var (
	// ErrNotPublished reports a name under which nothing is, or is any more.
	ErrNotPublished = errors.New("no descriptor has this name")
	// ErrPublished reports a name that another descriptor has.
	ErrPublished = errors.New("a descriptor has this name already")
	// ErrFull reports a directory, or a process's part of one, that takes no more.
	ErrFull = errors.New("the directory of descriptors is full")
	// ErrUnavailable reports a directory that cannot be asked: whoever keeps it is
	// gone, is closed, or is too old to have one.
	ErrUnavailable = errors.New("there is no directory of descriptors")
)

// Name is what a descriptor is found by. Whoever publishes it draws the pool at
// random, and counts.
type Name struct {
	Pool   [16]byte
	Number uint32
}

// Directory is where processes find each other's descriptors. Its methods are safe
// for concurrent use.
type Directory interface {
	// Publish puts a descriptor under a name until it is withdrawn, or this process
	// has ended. The descriptor stays the caller's, and may be closed at once. The
	// size, of 1 to 2^46 bytes, is for those who find it. The errors are
	// [ErrPublished], [ErrFull], [ErrUnavailable] and the context's: after one,
	// nothing is published under the name by this call.
	Publish(ctx context.Context, name Name, fd int, sizeBytes int64) error
	// Withdraw takes back what this process has published under a name, if it has:
	// nobody finds it any more. Those who have found it keep it.
	Withdraw(name Name)
	// Find finds what a process has published under a name, this one included. It
	// does not wait for somebody to publish it. The errors are [ErrNotPublished],
	// [ErrUnavailable] and the context's.
	Find(ctx context.Context, name Name) (Found, error)
}

// Found is what was found under a name.
type Found struct {
	// FD is a duplicate of what was published, the caller's to close. It is not
	// inherited by programs that this one starts.
	FD int
	// SizeBytes is what the owner said, and nobody has checked.
	SizeBytes int64
	Owner     Owner
}

// Owner is a process that has published something. The directory watches each of
// them once, however much is found of it, so there is nothing to close.
type Owner interface {
	// Done is closed when the process is dead, whether or not whoever keeps the
	// directory lives. It stays open when the directory is closed before.
	Done() <-chan struct{}
}
