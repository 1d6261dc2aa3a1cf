package connector

import (
	"errors"
	"fmt"
)

var (
	// ErrNotFound reports that there is no value under a key: it was not put yet, was got already,
	// or was cleaned up.
	ErrNotFound = errors.New("connector: nothing under this key")
	// ErrKey reports a key that is no valid name.
	ErrKey = errors.New("connector: bad key")
	// ErrMetadata reports metadata that no Put of this connector's type returned.
	ErrMetadata = errors.New("connector: bad metadata")
	// ErrCorrupt reports a payload that differs from the one that was put: cut short, or changed
	// under the reader.
	ErrCorrupt = errors.New("connector: damaged payload")
	// ErrBusy reports that a living process held a lock until the deadline.
	ErrBusy = errors.New("connector: in use by another process")
	// ErrFull reports that the transport had no space until the deadline.
	ErrFull = errors.New("connector: no room")
	// ErrTooLarge reports a value that is larger than the transport's maximum.
	ErrTooLarge = errors.New("connector: value too large")
	// ErrEncode reports a value that the serializer cannot encode.
	ErrEncode = errors.New("connector: value cannot be encoded")
	// ErrDecode reports a payload that the serializer cannot decode.
	ErrDecode = errors.New("connector: payload cannot be decoded")
	// ErrClosed reports the use of a connector that was closed.
	ErrClosed = errors.New("connector: closed")
	// ErrUnknown reports a connector type that is not registered.
	ErrUnknown = errors.New("connector: unknown type")
	// ErrSettings reports settings that a type does not accept.
	ErrSettings = errors.New("connector: bad settings")
	// ErrUnavailable reports a transport that cannot work here; the error names the missing part.
	ErrUnavailable = errors.New("connector: not available here")
)

// An Error names the operation that failed, its edge and its key.
type Error struct {
	Op   string // put, get, peek, await, cleanup
	Type string // of the connector
	Edge Edge   // zero for cleanup
	Key  string
	Err  error
}

// Error implements error.
func (e *Error) Error() string {
	if e.Edge == (Edge{}) {
		return fmt.Sprintf("%s %s %q: %v", e.Type, e.Op, clip(e.Key), e.Err)
	}
	return fmt.Sprintf("%s %s %q on %s: %v", e.Type, e.Op, clip(e.Key), e.Edge, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// clip shortens text of other processes for messages.
func clip(s string) string {
	const most = 64
	if len(s) > most {
		return s[:most] + "..."
	}
	return s
}
