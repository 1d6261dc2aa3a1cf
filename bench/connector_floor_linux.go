package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// sharedBytes has room for the largest value.
const sharedBytes = 64 * mib

// sharedMemory is the least that two processes do to hand values over in memory: one
// encodes a value there, and the other reads it. Where it lies travels with the note
// beside it, and that it is free again nobody says: for one value at a time, which is
// always in the same place, as a ring uses what was released last. What a ring takes
// above it is what its host and its store cost.
type sharedMemory struct {
	memory []byte
	name   string // empty: the other process's
}

func (s *sharedMemory) open(name string, flags int) error {
	f, err := os.OpenFile(bareDirectory+name, flags, 0o600)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // the mapping stays
	how := unix.PROT_READ
	if flags&os.O_CREATE != 0 {
		s.name, how = name, how|unix.PROT_WRITE
		if err := unix.Fallocate(int(f.Fd()), 0, 0, sharedBytes); err != nil {
			return fmt.Errorf("allocate: %w", err)
		}
	}
	s.memory, err = unix.Mmap(int(f.Fd()), 0, sharedBytes, how, unix.MAP_SHARED|unix.MAP_POPULATE)
	return err
}

// Put implements [connector.Transport].
func (s *sharedMemory) Put(_ context.Context, _ connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if s.memory == nil {
		if err := s.open(key, os.O_RDWR|os.O_CREATE|os.O_EXCL); err != nil {
			return nil, err
		}
	}
	return connector.Metadata{"name": s.name}, fill(s.memory[:size:size])
}

// Get implements [connector.Transport].
func (s *sharedMemory) Get(_ context.Context, _ connector.Edge, _ string, meta connector.Metadata) (connector.Payload, error) {
	name, nameErr := meta.Text("name")
	size, sizeErr := meta.Int("size")
	if err := errors.Join(nameErr, sizeErr); err != nil {
		return nil, err
	}
	if s.memory == nil {
		if err := s.open(name, os.O_RDONLY); err != nil {
			return nil, err
		}
	}
	return barePayload(s.memory[:size]), nil
}

// Await implements [connector.Transport].
func (s *sharedMemory) Await(context.Context, connector.Edge, string, connector.Metadata) (connector.Payload, error) {
	return nil, errors.ErrUnsupported
}

// Cleanup implements [connector.Transport].
func (s *sharedMemory) Cleanup(context.Context, string) error { return nil }

// Close implements [connector.Transport].
func (s *sharedMemory) Close() error {
	var errs []error
	if s.name != "" {
		errs = append(errs, os.Remove(bareDirectory+s.name))
	}
	if s.memory != nil {
		errs = append(errs, unix.Munmap(s.memory))
	}
	return errors.Join(errs...)
}
