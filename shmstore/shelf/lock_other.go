//go:build !linux

package shelf

import "github.com/omnibus-runtime/omnibus/shmstore"

// Describe is for Linux.
func Describe(int) (int, error) { return -1, shmstore.ErrUnsupported }

func lockByte(int, uint64) bool { return false }

func shareByte(int, uint64) bool { return false }

func unlockByte(int, uint64) {}

func lockedElsewhere(int, uint64) bool { return true }

func sharedElsewhere(int, uint64) bool { return false }

func closeDescriptor(int) {}
