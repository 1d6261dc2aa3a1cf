//go:build !linux

package shmstore

import (
	"fmt"
	"net"
)

// Admit takes in a reader from another process. It needs [Shared] memory,
// which this platform lacks.
func (s *Store) Admit(*net.UnixConn) (ReaderID, error) {
	return 0, fmt.Errorf("admit reader: %w", ErrUnsupported)
}

// Attach makes this process a reader of another process's store. It needs
// [Shared] memory, which this platform lacks.
func Attach(*net.UnixConn) (*Reader, error) {
	return nil, fmt.Errorf("attach: %w", ErrUnsupported)
}
