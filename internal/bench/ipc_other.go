//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
)

func openSide(context.Context, Options, peerSpec) (side, error) {
	return nil, fmt.Errorf("processes share memory on Linux alone: %w", errors.ErrUnsupported)
}

func runPeer(context.Context, peerSpec, io.Reader) error { return errors.ErrUnsupported }
