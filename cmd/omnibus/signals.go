package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

// interruptible is a context that an interrupt, or a request to terminate, ends. From
// then on the next signal ends the program at once.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
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

// interrupted gives what failed because of a signal the exit code that shells have for
// that.
func interrupted(ctx context.Context, err error) error {
	var bySignal *exitError
	if err == nil || !errors.As(context.Cause(ctx), &bySignal) {
		return err
	}
	return &exitError{bySignal.code, err}
}
