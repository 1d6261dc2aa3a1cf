package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// serveMean is the worker in Go. It dials the store before it serves its stage, so that it is charged for every handle
// that it receives.
func serveMean() error {
	signal.Ignore(os.Interrupt) // from the terminal: the front end sends SIGTERM when it has finished
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	reader, err := keyed.Dial(os.Getenv(storeVariable))
	if err != nil {
		return err
	}
	n, err := node.Join(ctx, "mean", node.JoinOptions{})
	if err != nil {
		return errors.Join(err, reader.Close())
	}
	err = n.Serve(ctx, bus.Stage("mean", func(_ *bus.Task, h shmstore.Handle) (map[string]any, error) { return mean(reader, h), nil }))
	return errors.Join(err, n.Close(context.WithoutCancel(ctx)), reader.Close())
}

// mean is the mean colour of an image, whose pixels it reads in place.
func mean(reader *keyed.Reader, h shmstore.Handle) map[string]any {
	value, err := reader.Get(h)
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	defer value.Release()
	var pixels codec.Tensor
	if err := value.Decode(&pixels); err != nil {
		return map[string]any{"error": err.Error()}
	}
	var sum [channels]int
	for i, b := range pixels.Data {
		sum[i%channels] += int(b)
	}
	n := max(len(pixels.Data)/channels, 1)
	return map[string]any{"mean": fmt.Sprintf("#%02x%02x%02x", sum[0]/n, sum[1]/n, sum[2]/n)}
}
