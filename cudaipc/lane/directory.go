package lane

import (
	"context"
	"errors"
)

// The errors of a [Directory]. Test with errors.Is. An invalid argument is ErrInvalid of package
// cudaipc.
var (
	// ErrNotPublished reports a name without a descriptor, or with one that was withdrawn.
	ErrNotPublished = errors.New("no descriptor has this name")
	// ErrPublished reports a name of another descriptor.
	ErrPublished = errors.New("a descriptor has this name already")
	// ErrFull reports a directory without space, in all or for this process.
	ErrFull = errors.New("the directory of descriptors is full")
	// ErrUnavailable reports a directory that cannot be asked: its host has ended, is closed, or is
	// too old to have one.
	ErrUnavailable = errors.New("there is no directory of descriptors")
)

// Name identifies a descriptor. Its publisher draws Pool at random, and counts Number.
type Name struct {
	Pool   [16]byte
	Number uint32
}

// Directory is where processes publish and find descriptors. Its methods are safe for concurrent
// use.
type Directory interface {
	// Publish publishes a descriptor under a name until it is withdrawn, or this process has ended.
	// The descriptor stays the caller's, and may be closed after the call. The size, of 1 to 2^46
	// bytes, is returned by Find. The errors are [ErrPublished], [ErrFull], [ErrUnavailable] and
	// the context's: after one, this call has published nothing under the name.
	Publish(ctx context.Context, name Name, fd int, sizeBytes int64) error
	// Withdraw removes the descriptor that this process has published under a name, if it has.
	// Later calls of Find do not return it; processes that have found it keep it.
	Withdraw(name Name)
	// Find returns the descriptor that a process has published under a name, this process included.
	// It does not wait for a Publish. The errors are [ErrNotPublished], [ErrUnavailable] and the
	// context's.
	Find(ctx context.Context, name Name) (Found, error)
}

// Found is the result of [Directory.Find].
type Found struct {
	// FD is a duplicate of the published descriptor, which the caller closes. Programs that this
	// one starts do not inherit it.
	FD int
	// SizeBytes is the size that the owner passed to Publish, unchecked.
	SizeBytes int64
	Owner     Owner
}

// Owner is a process that has published a descriptor. The directory watches each process once, for
// any number of descriptors, so an Owner is not closed.
type Owner interface {
	// Done is closed when the process is dead, also without a host. It stays open if the directory
	// is closed before.
	Done() <-chan struct{}
}
