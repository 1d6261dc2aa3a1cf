package peer

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

var (
	// ErrUnsupported reports a system other than Linux.
	ErrUnsupported = errors.New("connections between processes need Linux")
	// ErrInUse reports that another process listens at the path.
	ErrInUse = errors.New("in use")
	// ErrUntrusted reports a listener that may belong to another user.
	ErrUntrusted = errors.New("the host is not to be trusted")
	// ErrGone reports that the peer has closed the connection, or has died.
	ErrGone = errors.New("the peer is gone")
	// ErrClosed reports the use of a Sender after its Close.
	ErrClosed = errors.New("closed")
	// ErrBacklog reports that the peer does not read: the queue has reached its
	// bound.
	ErrBacklog = errors.New("the peer does not read: its queue is full")
	// errNamespace reports a peer in a pid namespace that is not visible from
	// here: its process cannot be watched.
	errNamespace = errors.New("the peer is in another pid namespace")
)

func protocolError(format string, args ...any) error {
	return packetError(wire.CodeProtocol, format, args...)
}

func packetError(code wire.Code, format string, args ...any) error {
	return fmt.Errorf("receive packet: %w", &wire.Error{Code: code, Text: fmt.Sprintf(format, args...)})
}
