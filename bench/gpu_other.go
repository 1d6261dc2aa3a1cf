//go:build !linux

package bench

import (
	"context"
	"errors"
	"fmt"
)

var errNoGPU = fmt.Errorf("tensors travel in memory of GPUs on Linux alone: %w", errors.ErrUnsupported)

func openGPUThroughput(context.Context, Options, string, string, int64) (trial, error) {
	return nil, errNoGPU
}

func openGPULatency(context.Context, Options, string, int) (trial, error) { return nil, errNoGPU }

func openGPUReclaim(context.Context, Options, int) (trial, error) { return nil, errNoGPU }

func openGPULeases(context.Context, Options, int) (trial, error) { return nil, errNoGPU }

func openGPUOrdering(context.Context, Options) (trial, error) { return nil, errNoGPU }
