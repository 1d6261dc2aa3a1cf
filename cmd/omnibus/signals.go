package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// interruptible is a context that an interrupt, or a request to terminate, ends. From then on
// the next signal ends the program at once, if it is not an echo of that one: see echoWait.
func interruptible(parent context.Context) (ctx context.Context, stop func()) {
	return endedBySignal(parent, echoWait, os.Interrupt, syscall.SIGTERM)
}

func endedBySignal(parent context.Context, echo time.Duration, all ...os.Signal) (ctx context.Context, stop func()) {
	ctx, cancel := context.WithCancelCause(parent)
	over := make(chan struct{})
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, all...)
	go func() {
		s, got := nextSignal(signals, over, nil, 0)
		if !got {
			return
		}
		number, _ := s.(syscall.Signal)
		cancel(&exitError{exitSignal + int(number), fmt.Errorf("ended by a signal: %v", s)})
		select {
		case <-time.After(echo):
			signal.Stop(signals)
		case <-over:
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		close(over)
		cancel(nil)
	}
}

// endsOfHosts are the signals that end a host, but for those that were ignored when it was started, as by nohup, or by a
// shell that runs a script and starts a command in the background.
func endsOfHosts() []os.Signal {
	return append(slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGHUP}, signal.Ignored), syscall.SIGTERM)
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
