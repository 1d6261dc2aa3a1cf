//go:build !unix

package lane

import "errors"

func newMemory(int) ([]byte, error) { return nil, errors.ErrUnsupported }

func freeMemory([]byte) error { return nil }

func closeDescriptor(int) {}
