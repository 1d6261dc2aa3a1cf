//go:build !linux

package lane

import "errors"

// Event is an eventfd, which only Linux has.
type Event struct{}

// NewEvent returns [errors.ErrUnsupported].
func NewEvent() (*Event, error) { return nil, errors.ErrUnsupported }

// OpenEvent returns [errors.ErrUnsupported].
func OpenEvent(int) (*Event, error) { return nil, errors.ErrUnsupported }

// Signal does nothing.
func (*Event) Signal() {}

// Wait returns [errors.ErrUnsupported].
func (*Event) Wait() error { return errors.ErrUnsupported }

// FD is no descriptor.
func (*Event) FD() int { return -1 }

// Close does nothing.
func (*Event) Close() error { return nil }

// Events are a [Waker] where there are events.
type Events struct{ Own, Peer *Event }

// Park returns [errors.ErrUnsupported].
func (e Events) Park() error { return e.Own.Wait() }

// Unpark does nothing.
func (e Events) Unpark() {}

// Wake does nothing.
func (e Events) Wake() {}
