package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interruptible is a context that an interrupt, or a request to terminate, or one of more
// signals, ends. From then on the next signal ends the program at once.
func interruptible(parent context.Context, more ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, append(more, os.Interrupt, syscall.SIGTERM)...)
	go func() {
		select {
		case s := <-signals:
			signal.Stop(signals)
			number, _ := s.(syscall.Signal)
			cancel(&exitError{exitSignal + int(number), fmt.Errorf("ended by a signal: %v", s)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

// outliveReaders has this program go on when nobody reads what it writes any more, where
// SIGPIPE would end it as SIGKILL does, with nothing put away. It is not ignored, because
// the programs that this one starts would inherit that.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// interrupted gives what failed because of a signal the exit code that shells have for
// that.
func interrupted(ctx context.Context, err error) error {
	var bySignal *exitError
	if err == nil || !errors.As(context.Cause(ctx), &bySignal) {
		return err
	}
	return &exitError{bySignal.code, err}
}
