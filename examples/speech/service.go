package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A service is the pipeline, with stages in this process or in others.
type service interface {
	Stream(ctx context.Context, opts ...bus.SubmitOption) (*bus.Request, error)
	Close(ctx context.Context) error
	stats(ctx context.Context) (bus.Stats, error)
}

// open starts the pipeline in this process, or joins the bus of the host that
// started this process.
func (o options) open(ctx context.Context) (service, error) {
	if os.Getenv(node.EnvSocket) != "" {
		n, err := node.Join(ctx, "speech", node.JoinOptions{MaxRequests: 1})
		return joined{n}, err
	}
	stages := pipeline()
	opts := bus.Options{Name: "speech", Store: shmstore.Options{ArenaBytes: 32 << 20}}
	if o.tweak != nil {
		o.tweak(&stages, &opts)
	}
	b, err := bus.Open(ctx, stages, opts)
	return inside{b}, err
}

// inside is a pipeline whose stages are in this process.
type inside struct{ *bus.Bus }

func (s inside) stats(context.Context) (bus.Stats, error) { return s.Stats(), nil }

// joined is a pipeline whose stages are processes.
type joined struct{ *node.Node }

// stats has the figures of all requests since the host began.
func (s joined) stats(ctx context.Context) (bus.Stats, error) {
	var stats bus.Stats
	answer, err := s.Call(ctx, "stats", nil)
	if err != nil {
		return stats, err
	}
	if err := json.Unmarshal(answer, &stats); err != nil {
		return stats, fmt.Errorf("the host's figures: %w", err)
	}
	return stats, nil
}

// serve does the work of one stage for the host that started this process,
// until the host drains or the context ends.
func serve(ctx context.Context, stage string) error {
	stages := pipeline().Stages
	i := slices.IndexFunc(stages, func(s bus.StageSpec) bool { return s.Name == stage })
	if i < 0 {
		return fmt.Errorf("there is no stage %q", stage)
	}
	n, err := node.Join(ctx, "speech: "+stage, node.JoinOptions{})
	if err != nil {
		return err
	}
	return errors.Join(n.Serve(ctx, stages[i]), n.Close(context.WithoutCancel(ctx)))
}
