//go:build !linux

package peer

import (
	"context"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Listener accepts connections at a path.
type Listener struct{}

// Listen returns ErrUnsupported.
func Listen(string, ListenOptions) (*Listener, error) { return nil, ErrUnsupported }

// Dial returns ErrUnsupported.
func Dial(context.Context, string, DialOptions) (*Conn, error) { return nil, ErrUnsupported }

// Pair returns ErrUnsupported.
func Pair() (*Conn, *Conn, error) { return nil, nil, ErrUnsupported }

// Path returns nothing: there is no listener.
func (*Listener) Path() string { return "" }

// Accept returns ErrUnsupported.
func (*Listener) Accept() (*Conn, error) { return nil, ErrUnsupported }

// Close does nothing.
func (*Listener) Close() error { return nil }

// The functions below are never called: there is no connection.

func (*Conn) send([]byte, []int) error                        { return ErrUnsupported }
func (*Conn) trySend([]byte, []int) (bool, error)             { return false, ErrUnsupported }
func (*Conn) hungUp() bool                                    { return true }
func (*Conn) hangUp()                                         {}
func (*Conn) receive([]byte, func() bool) (int, []int, error) { return 0, nil, ErrUnsupported }
func (*Conn) trySendPacket([]byte, []int) (bool, error)       { return false, ErrUnsupported }

func watch(*Conn, watchOptions) (*process.Process, error) { return nil, ErrUnsupported }

// Sockets is not supported here.
func Sockets() ([2]int, error) { return [2]int{}, ErrUnsupported }

// Open is not supported here.
func Open(int) (*Conn, error) { return nil, ErrUnsupported }
