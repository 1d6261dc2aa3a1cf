package main

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestInterrupted: the exit code is the signal's for each error that a signal has caused, also for a signal between
// two requests.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	if err := interrupted(ctx, bus.ErrAborted); !errors.Is(err, bus.ErrAborted) || codeOf(err) != 0 {
		t.Errorf("without a signal: %v", err)
	}
	const terminated = exitSignal + 15
	cancel(&exitError{terminated, errors.New("a signal")})
	for name, err := range map[string]error{
		"the cause":   context.Cause(ctx),
		"aborted":     outcomeError(bus.ErrAborted),
		"of many":     (&submission{count: 2, concurrency: 1, output: newOutput()}).load(ctx, io.Discard, nil, nil),
		"of a writer": io.ErrShortWrite,
	} {
		if code := codeOf(interrupted(ctx, err)); code != terminated {
			t.Errorf("%s: %v has the code %d, want %d", name, err, code, terminated)
		}
	}
	if err := interrupted(ctx, nil); err != nil {
		t.Errorf("of what was over before: %v", err)
	}
}

func codeOf(err error) int {
	var exit *exitError
	if !errors.As(err, &exit) {
		return 0
	}
	return exit.code
}
