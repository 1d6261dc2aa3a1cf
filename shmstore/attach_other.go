//go:build !linux

package shmstore

import (
	"fmt"
	"net"

	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Admit admits a reader from another process. It needs [Shared] memory,
// which this platform lacks.
func (s *Store) Admit(*net.UnixConn) (ReaderID, error) {
	return 0, fmt.Errorf("admit reader: %w", ErrUnsupported)
}

// Attach makes this process a reader of another process's store. It needs
// [Shared] memory, which this platform lacks.
func Attach(*net.UnixConn) (*Reader, error) {
	return nil, fmt.Errorf("attach: %w", ErrUnsupported)
}

// Admission admits one reader. It needs [Shared] memory, which this platform lacks.
type Admission struct{}

// StartAdmission is not supported here.
func (s *Store) StartAdmission() (*Admission, error) { return nil, ErrUnsupported }

// The methods below are never called, because there is no admission.

// Exchange is not supported here.
func (*Admission) Exchange(*net.UnixConn) error { return ErrUnsupported }

// Watch is not supported here.
func (*Admission) Watch() (*process.Process, error) { return nil, ErrUnsupported }

// Join is not supported here.
func (*Admission) Join() (ReaderID, error) { return 0, ErrUnsupported }

// Cancel does nothing.
func (*Admission) Cancel() {}

// Refuse is not supported here.
func Refuse(*net.UnixConn, error) error { return ErrUnsupported }
