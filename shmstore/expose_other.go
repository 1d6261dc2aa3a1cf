//go:build !linux

package shmstore

func duplicate(int) (int, error) { return -1, ErrUnsupported }

func duplicateReadOnly(fd int) (int, error) { return duplicate(fd) }
