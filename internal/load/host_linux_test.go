package load

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/config"
)

// Variables of the program that hosts a pipeline.
const (
	pipelineEnv = "OMNIBUS_LOAD_PIPELINE"
	socketEnv   = "OMNIBUS_LOAD_SOCKET"
)

// readyLine is the line that the program prints when it has opened the bus; a line of omnibus run
// begins with it as well.
const readyLine = "ready"

// drainTime bounds the wait for open requests when the program ends.
const drainTime = time.Minute

// hostPipeline is the process of a host with stages of its own, which also submits the plans of its
// standard input. It ends at SIGTERM.
func hostPipeline(c *cell) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	file, err := config.Load(os.Getenv(pipelineEnv), config.Options{})
	if err != nil {
		return err
	}
	pipeline, opts, err := file.BuildHost(factories(c, os.Getenv(faultEnv)))
	if err != nil {
		return err
	}
	opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	b, err := bus.Open(ctx, pipeline, opts)
	if err != nil {
		return err
	}
	server, err := host.Listen(b, os.Getenv(socketEnv), host.ListenOptions{})
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stderr, readyLine)
	if n, err := strconv.Atoi(os.Getenv(concurrencyEnv)); err == nil {
		submitPlans(b, n)
	}
	<-ctx.Done()
	draining, cancel := context.WithTimeout(context.Background(), drainTime)
	defer cancel()
	server.Refuse()
	server.Drain()
	return errors.Join(b.Drain(draining), server.Close(draining), b.Close(draining))
}
