package peer

import "errors"

var (
	// ErrUnsupported reports a system without what this package needs.
	ErrUnsupported = errors.New("connections between processes need Linux")
	// ErrInUse reports that another process listens at the path.
	ErrInUse = errors.New("in use")
	// ErrUntrusted reports a listener that may be another user's.
	ErrUntrusted = errors.New("the host is not to be trusted")
	// ErrGone reports that the peer has closed the connection, or has died.
	ErrGone = errors.New("the peer is gone")
	// ErrClosed reports the use of what this side has closed.
	ErrClosed = errors.New("closed")
	// ErrBacklog reports that the peer does not read what is meant for it: the
	// queue has reached its bound.
	ErrBacklog = errors.New("the peer does not read: its queue is full")
	// ErrNamespace reports a peer in a pid namespace that cannot be seen from
	// here, whose life therefore cannot be watched.
	ErrNamespace = errors.New("the peer is in another pid namespace")
)
