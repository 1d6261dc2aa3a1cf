package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// startOther starts this program again, and returns the function that ends it.
func startOther(args ...string) (end func() error, err error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	return func() error { return errors.Join(stdin.Close(), cmd.Wait()) }, nil
}

// join is the other process: it serves the stage turn until its standard input
// ends, which the death of the host causes as well.
func join(ctx context.Context, o options) (err error) {
	g, err := openGPU(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	node, err := node.Join(ctx, "gpu", node.JoinOptions{Socket: o.socket, GPU: g.options(), Logger: slog.Default()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	err = node.Serve(ctx, bus.StageSpec{Name: "turn", Handle: g.stage().turn})
	if errors.Is(err, context.Canceled) {
		err = nil // the standard input ended before the stage was served
	}
	return errors.Join(err, node.Close(context.WithoutCancel(ctx)))
}
