package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/internal/hang"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

func init() { addVerb(newRunCmd) }

const runLong = `Run a pipeline: start the processes of its stages, let them exchange payloads
through shared memory, and start them again when they end.

Each stage says under omnibus: how its processes come about:

  stages:
    - stage_id: talker
      omnibus: {exec: [python3, talker.py], replicas: 2}   # started by the host
    - stage_id: vocoder
      omnibus: {attach: true}                              # started by another program

A file may name variables of the environment (${NAME}), stand on another file
(base_config: other.yaml), and have changes for some platforms, of which --platform
chooses one.

Processes find the host by OMNIBUS_SOCKET and OMNIBUS_BUS, and learn what they are
to do by OMNIBUS_STAGE and OMNIBUS_REPLICA. When each has served its stage, the
line "ready: ..." goes to standard error. So do the notes that omnibus validate has on
the file, unless --log-level is error.

With a command behind --, or omnibus: {main: [...]} in the file, that is run as soon
as the bus is ready, with the terminal and the same environment; the run ends when
it does, with its exit code.

The first interrupt (or SIGTERM, or SIGHUP) drains: open requests get the grace to
end, then the processes are stopped, a stage after those that feed it. The second one
writes the goroutines of this process to standard error, ends the run at once, and aborts
what is open; it ends one that hangs, too. The same one within 200 ms is the first.

The exit code is 0 when all went well, 1 when something failed, 2 when the file
cannot be run, and after a second signal 128 and its number: 130 for an interrupt.`

const runExample = `  omnibus run pipeline.yaml
  omnibus run pipeline.yaml -- python3 client.py --text "hello"
  omnibus run pipeline.yaml -- omnibus submit input.bin > output.bin
  omnibus run pipeline.yaml --platform npu
  omnibus run pipeline.yaml --http 127.0.0.1:9464 --log-level info`

func newRunCmd() *cobra.Command {
	var flags hostFlags
	var pipeline pipelineFlag
	cmd := &cobra.Command{
		Use:     "run FILE [-- COMMAND ARG...]",
		Short:   "Run a pipeline, with its stages as processes",
		Long:    runLong,
		Example: runExample,
		Args:    runArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := pipeline.load(args[0])
			if err != nil {
				return &exitError{exitUsage, report(cmd, err)}
			}
			opts := flags.options(cmd)
			opts.Pipeline, opts.Main = p, args[1:]
			return runHost(cmd, opts)
		},
	}
	pipeline.add(cmd)
	flags.add(cmd, ", in place of the file's")
	cmd.Flags().Var((*span)(&flags.opts.Grace), "grace", "what open requests have when the run drains (default 10s)")
	return cmd
}

// runArgs requires a file, and allows a command behind -- only.
func runArgs(cmd *cobra.Command, args []string) error {
	dash := cmd.ArgsLenAtDash()
	if dash < 0 {
		dash = len(args)
	}
	switch {
	case dash == 0:
		return errors.New("which pipeline file?")
	case dash > 1:
		return fmt.Errorf("one file, and then -- before a command: what is %q?", args[1])
	case dash < len(args) && args[dash] == "":
		return errors.New("the command behind -- is empty")
	}
	return nil
}

func newLogger(to io.Writer, level, format string) *slog.Logger {
	var l slog.Level
	_ = l.UnmarshalText([]byte(level)) // the flag allows valid words only
	opts := &slog.HandlerOptions{Level: l}
	if format == outputJSON {
		return slog.New(slog.NewJSONHandler(to, opts))
	}
	return slog.New(slog.NewTextHandler(to, opts))
}

func runHost(cmd *cobra.Command, opts host.Options) error {
	outliveReaders()
	ctx, signals := drainOnSignal(cmd.Context(), &opts)
	defer signals.stop()
	opts.Connectors = connectorTypes()
	opts.Stdin, opts.Stdout, opts.Stderr = cmd.InOrStdin(), cmd.OutOrStdout(), cmd.ErrOrStderr()
	err := host.Run(ctx, opts)
	var failed *host.MainError
	switch {
	case errors.Is(err, host.ErrQuit):
		return &exitError{signals.exitCode(), err}
	case errors.Is(err, host.ErrConfig):
		return &exitError{exitUsage, &buildError{err}}
	case errors.As(err, &failed):
		return &exitError{failed.Code, err}
	}
	return err
}

// buildError is the error of a file that cannot be run, in the form that editors can follow. It drops the
// repeated prefix of the bus's errors.
type buildError struct{ error }

func (e *buildError) Error() string {
	return strings.NewReplacer(
		host.ErrConfig.Error()+": ", "",
		config.ErrBuild.Error()+": ", "",
		config.ErrNoTransport.Error()+":\n", "",
	).Replace(e.error.Error())
}

// runSignals are those that end a run.
type runSignals struct {
	stop   func()
	second atomic.Value // of os.Signal
}

// exitCode is the exit code of a run that the second signal ended, by the convention of shells.
func (s *runSignals) exitCode() int {
	sig, _ := s.second.Load().(syscall.Signal)
	return exitSignal + int(sig)
}

// dumpTime bounds the writing of the goroutines to standard error.
const dumpTime = 3 * time.Second

// drainOnSignal ends the context at the first signal, and logs that. At the second signal it writes the
// goroutines, which show why the run has not ended, and closes opts.Quit.
func drainOnSignal(parent context.Context, opts *host.Options) (context.Context, *runSignals) {
	ctx, cancel := context.WithCancelCause(parent)
	quit, over, ended := make(chan struct{}), make(chan struct{}), make(chan struct{})
	opts.Quit = quit
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, endsOfHosts()...)
	s := &runSignals{stop: func() {
		signal.Stop(signals)
		close(over)
		cancel(nil)
		opts.Outlet.Hurry()
		<-ended
	}}
	go func() {
		defer close(ended)
		first, got := nextSignal(signals, over, nil, 0)
		if !got {
			return
		}
		cancel(causeOf(first))
		var told sync.WaitGroup
		told.Go(func() { // the second signal does not wait for a slow reader of the log
			fmt.Fprintf(opts.Outlet, "%v: draining; once more ends it at once\n", first)
		})
		if second, got := nextSignal(signals, over, first, echoWait); got {
			s.second.Store(second)
			_ = hang.WriteGoroutines(opts.Outlet, dumpTime) // the run ends in any case
			close(quit)
		}
		told.Wait()
	}()
	return ctx, s
}

// echoWait is the time in which a repeated signal counts as an echo: timeout(1) signals the
// process that it watches, and then that process's group.
const echoWait = 200 * time.Millisecond

// nextSignal returns the next signal, without echoes of the last one.
func nextSignal(signals <-chan os.Signal, over <-chan struct{}, last os.Signal, wait time.Duration) (os.Signal, bool) {
	since := time.Now()
	for {
		select {
		case <-over:
			return nil, false
		case sig := <-signals:
			if sig != last || time.Since(since) >= wait {
				return sig, true
			}
		}
	}
}

func causeOf(s os.Signal) error {
	if s == os.Interrupt {
		return host.Interrupt{}
	}
	return errors.New(s.String())
}

// waits are the words of bus.Wait.
func waits() (words []string) {
	for _, w := range bus.Waits() {
		words = append(words, string(w))
	}
	return words
}
