//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
)

func openSide(context.Context, Options, peerSpec) (side, error) {
	return nil, fmt.Errorf("processes share memory only on Linux: %w", errors.ErrUnsupported)
}

func compute(_ context.Context, opts Options) (idle func() error, err error) {
	if opts.Busy > 0 {
		return nil, fmt.Errorf("computing processes are started only on Linux: %w", errors.ErrUnsupported)
	}
	return func() error { return nil }, nil
}

func runPeer(context.Context, peerSpec, io.Reader) error { return errors.ErrUnsupported }
