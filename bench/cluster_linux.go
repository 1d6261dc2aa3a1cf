package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A cluster is the processes of one side, in the order in which they were started.
type cluster struct {
	opts  Options
	dir   string // for their sockets
	peers []*peer
	dead  chan *peer // with a capacity for all
}

// maxPeers bounds the processes of a cluster.
const maxPeers = 2 * attachedToHost

func newCluster(opts Options) (*cluster, error) {
	dir, err := os.MkdirTemp("", "omnibus-bench")
	return &cluster{opts: opts, dir: dir, dead: make(chan *peer, maxPeers)}, err
}

// path returns the path of a socket.
func (c *cluster) path(name string) string { return filepath.Join(c.dir, name) }

// add adds a process. It returns err, if there is one.
func (c *cluster) add(p *peer, err error) error {
	if err != nil {
		return err
	}
	c.peers = append(c.peers, p)
	go func() {
		<-p.exited
		c.dead <- p
	}()
	return nil
}

// start starts a process, waits until it calls [ready], and returns the text of that call.
func (c *cluster) start(ctx context.Context, spec peerSpec) (text string, err error) {
	r, w, err := os.Pipe()
	if err != nil {
		return "", err
	}
	defer func() { _ = r.Close() }()
	p, err := startPeer(ctx, c.opts, spec, []*os.File{w})
	_ = w.Close() // the process has its own
	if err = c.add(p, err); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return "", p.explain(fmt.Errorf("it did not start: %w", err))
	}
	return strings.TrimSuffix(line, "\n"), nil
}

// ready sends a text to the process that started this one, and reports that this one can be used.
func ready(text string) error {
	f := os.NewFile(firstFile, "ready")
	_, err := fmt.Fprintln(f, text)
	return errors.Join(err, f.Close())
}

// watch returns a context that ends when one of the processes dies.
func (c *cluster) watch(ctx context.Context) (watched context.Context, stop func()) {
	watched, cancel := context.WithCancelCause(ctx)
	for _, p := range c.peers {
		p.onExit(cancel)
	}
	return watched, func() { cancel(nil) }
}

// explain adds the standard error of a process that is dead, or dies within exitWait.
func (c *cluster) explain(err error) error {
	select {
	case p := <-c.dead:
		c.dead <- p
		return p.explain(err)
	case <-time.After(exitWait):
		return err
	}
}

// close ends all processes, the last first.
func (c *cluster) close(context.Context) error {
	var errs []error
	for _, p := range slices.Backward(c.peers) {
		errs = append(errs, p.close())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// requests makes n requests, as many at a time as the spec says.
func (s peerSpec) requests(ctx context.Context, n int, request func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var begun atomic.Int64
	var group sync.WaitGroup
	for range min(s.Flight, n) {
		group.Go(func() {
			for begun.Add(1) <= int64(n) && ctx.Err() == nil {
				if err := request(ctx); err != nil {
					cancel(err)
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// timed runs f under a context that ends when a process of the cluster dies, and returns the time that
// f took.
func (c *cluster) timed(ctx context.Context, f func(context.Context) error) (time.Duration, error) {
	ctx, stop := c.watch(ctx)
	defer stop()
	start := time.Now()
	if err := f(ctx); err != nil {
		return 0, c.explain(err)
	}
	return time.Since(start), nil
}

// warmedUp returns a side after its first messages, which trigger everything that starts on demand.
func warmedUp(ctx context.Context, s side, c *cluster, spec peerSpec, err error) (side, error) {
	if err == nil {
		_, err = s.run(ctx, 4)
	}
	if err != nil {
		return nil, errors.Join(c.explain(err), s.close(context.WithoutCancel(ctx)))
	}
	if spec.Gauge == "" {
		return s, nil
	}
	idle := idleSide{side: s, of: spec.Gauge}
	for _, p := range c.peers {
		idle.pids = append(idle.pids, p.cmd.Process.Pid)
	}
	return idle, nil
}
