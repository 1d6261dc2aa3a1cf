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

// interruptible is a context that SIGINT or SIGTERM ends. After that the next signal ends the program
// at once, unless it is an echo: see echoWait.
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

// endsOfHosts are the signals that end a host, without those that are ignored at its start: by nohup, or by a shell
// that starts a command of a script in the background.
func endsOfHosts() []os.Signal {
	return append(slices.DeleteFunc([]os.Signal{os.Interrupt, syscall.SIGHUP}, signal.Ignored), syscall.SIGTERM)
}

// outliveReaders lets this program outlive the reader of its output: SIGPIPE would end it without any
// cleanup. SIGPIPE is caught, not ignored, because started programs would inherit an ignored signal.
func outliveReaders() { signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) }

// interrupted gives an error that a signal has caused the exit code of the signal, by the convention
// of shells.
func interrupted(ctx context.Context, err error) error {
	var bySignal *exitError
	if err == nil || !errors.As(context.Cause(ctx), &bySignal) {
		return err
	}
	return &exitError{bySignal.code, err}
}
