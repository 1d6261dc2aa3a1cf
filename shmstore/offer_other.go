//go:build !linux

package shmstore

import "fmt"

// OfferReader makes a place for a reader that opens the store by name. It needs
// [Shared] memory, which this platform lacks.
func (s *Store) OfferReader() (ReaderID, error) {
	return 0, fmt.Errorf("offer a reader: %w", ErrUnsupported)
}

// ResetReader forgets what the reader in an offered place holds. There is none here.
func (s *Store) ResetReader(id ReaderID) error {
	return fmt.Errorf("reset reader %d: %w", id, &ReaderError{Readers: Readers(id), Err: ErrUnknownReader})
}

// OpenReader opens a store by the names of its files. It needs [Shared] memory, which
// this platform lacks.
func OpenReader(_, _, _ int) (*Reader, error) {
	return nil, fmt.Errorf("open a store by name: %w", ErrUnsupported)
}
