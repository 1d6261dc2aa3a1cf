package bench

import (
	"context"
	"errors"
	"fmt"
)

// compute starts the processes that compute during the measurement; idle ends them.
func compute(ctx context.Context, opts Options) (idle func() error, err error) {
	var peers []*peer
	idle = func() error {
		var errs []error
		for _, p := range peers {
			errs = append(errs, p.close())
		}
		return errors.Join(errs...)
	}
	for range opts.Busy {
		p, err := startPeer(ctx, opts, peerSpec{Carrier: byNothing}, nil)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("start a computing process: %w", err), idle())
		}
		peers = append(peers, p)
	}
	return idle, nil
}

// computed keeps the compiler from leaving the work out.
var computed uint64

// computeForever keeps one core busy.
func computeForever(context.Context, peerSpec) error {
	for {
		computed = computed*6364136223846793005 + 1
	}
}
