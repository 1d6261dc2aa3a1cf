package bus_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestNodesAgainstModel is TestAgainstModel with a node for every stage, and one
// that submits the requests: a bus across processes has the same results as one
// in a single process.
func TestNodesAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := drawModel(rt)
		requests := rapid.SliceOfN(drawInputs(), 1, 4).Draw(rt, "requests")
		c, err := startCluster(t.Context(), filepath.Join(t.TempDir(), "bus.sock"), m.pipeline(), bus.Options{
			MaxRequests: 6,
			Store:       shmstore.Options{ArenaBytes: modelArenaBytes, Memory: shmstore.Shared},
		})
		if err != nil {
			rt.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		wrong := make(chan error, len(requests))
		for _, inputs := range requests {
			go func() { wrong <- m.run(ctx, c.caller, inputs) }()
		}
		unwatch := context.AfterFunc(ctx, func() { fmt.Fprintln(os.Stderr, c.describe()) })
		for range requests {
			if err := <-wrong; err != nil {
				rt.Errorf("%v", err)
			}
		}
		unwatch()
		if err := c.bus.Drain(t.Context()); err != nil {
			rt.Error(err)
		}
		if held := bus.HeldBytes(c.bus); held != 0 {
			rt.Errorf("%d bytes are still held", held)
		}
		if err := c.close(context.Background()); err != nil {
			rt.Error(err)
		}
	})
}

// cluster is a bus, a node for each of its stages, and a node that submits.
type cluster struct {
	bus    *bus.Bus
	server *host.Server
	nodes  []*node.Node
	served chan error
	caller *node.Node
}

func startCluster(ctx context.Context, path string, p bus.Pipeline, opts bus.Options) (*cluster, error) {
	b, err := bus.Open(ctx, testbus.Remotes(p), opts)
	if err != nil {
		return nil, err
	}
	c := &cluster{bus: b, served: make(chan error, len(p.Stages))}
	if c.server, err = host.Listen(b, path, host.ListenOptions{}); err != nil {
		return nil, errors.Join(err, b.Close(ctx))
	}
	for _, spec := range p.Stages {
		n, err := node.Join(ctx, spec.Name, node.JoinOptions{Socket: path})
		if err != nil {
			return nil, errors.Join(err, c.close(ctx))
		}
		c.nodes = append(c.nodes, n)
		go func() { c.served <- n.Serve(context.Background(), spec) }()
	}
	c.caller, err = node.Join(ctx, "caller", node.JoinOptions{Socket: path})
	if err != nil {
		return nil, errors.Join(err, c.close(ctx))
	}
	return c, nil
}

// describe says for what the requests wait.
func (c *cluster) describe() string {
	text, err := json.MarshalIndent(c.server.Status().Requests, "", "  ")
	return fmt.Sprintf("%s %v\n%v", text, err, c.bus.Stalls(0))
}

func (c *cluster) close(ctx context.Context) error {
	var errs []error
	for _, n := range append(c.nodes, c.caller) {
		if n != nil {
			errs = append(errs, n.Close(ctx))
		}
	}
	for range c.nodes {
		if err := <-c.served; !errors.Is(err, bus.ErrHostGone) { // it ends with the node
			errs = append(errs, fmt.Errorf("Serve ended with %w", err))
		}
	}
	return errors.Join(append(errs, c.server.Close(ctx), c.bus.Close(ctx))...)
}
