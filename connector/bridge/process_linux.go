package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	// A bridge that died is started again after a pause, which grows while the start fails.
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second

	// grace is added to the timeout of a call. The client of the store has the plain timeout, so
	// its error, which says more, comes first.
	grace = time.Second

	// stopPatience is added to the timeout when a bridge ends, for the values that it removes.
	stopPatience = 5 * time.Second
)

// processes holds the bridges of this program, by engine and settings.
var processes = struct {
	mu  sync.Mutex
	all map[string]*process
}{all: make(map[string]*process)}

// A process keeps a bridge running while it has users.
type process struct {
	key, python, engine string
	settings            string // JSON
	timeout             time.Duration
	log                 *slog.Logger
	buffers             buffers
	calls               chan struct{} // one element for each call at a bridge

	users int // guarded by the lock of processes

	startMu sync.Mutex // guards running; held while the first bridge starts
	running bool

	lifeCtx    context.Context //nolint:containedctx // ends the background work
	cancelLife context.CancelFunc
	background sync.WaitGroup

	mu        sync.Mutex
	link      *link
	changed   chan struct{} // closed when link or failed changes
	failed    error         // error of the last start
	uncertain map[name]chan struct{}
}

// acquireProcess returns the process of some settings, and starts its bridge if none runs.
func acquireProcess(ctx context.Context, engine string, settings map[string]any, config connector.Config) (*process, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("the settings of %s: %w", engine, err)
	}
	key := engine + string(text)
	processes.mu.Lock()
	p := processes.all[key]
	if p == nil {
		p = &process{
			key: key, python: config.Settings.Text(optPython), engine: engine, settings: string(text),
			timeout: config.Settings.Duration(optTimeout), log: config.Log,
			calls: make(chan struct{}, lanes), changed: make(chan struct{}), uncertain: make(map[name]chan struct{}),
		}
		p.lifeCtx, p.cancelLife = context.WithCancel(context.Background())
		processes.all[key] = p
	}
	p.users++
	processes.mu.Unlock()
	if err := p.startOnce(ctx); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

func (p *process) startOnce(ctx context.Context) error {
	p.startMu.Lock()
	defer p.startMu.Unlock()
	if p.running {
		return nil
	}
	l, err := p.start(ctx)
	if err != nil {
		return err
	}
	p.running = true
	p.setLink(l, nil)
	p.background.Go(func() { p.supervise(l) })
	return nil
}

// start starts a bridge. The limit is longer than the client's own timeout, whose error comes
// first.
func (p *process) start(ctx context.Context) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*p.timeout+stopPatience)
	defer cancel()
	return start(ctx, p.python, p.engine, p.settings)
}

// release drops a user, and stops the bridge with the last one.
func (p *process) release() {
	processes.mu.Lock()
	p.users--
	last := p.users == 0
	if last {
		delete(processes.all, p.key)
	}
	processes.mu.Unlock()
	if last {
		p.cancelLife()
		p.background.Wait()
		p.buffers.close()
	}
}

// supervise starts a bridge again whenever it died, until the last user has released the process.
func (p *process) supervise(l *link) {
	pause := minPause
	for {
		if l != nil {
			select {
			case <-l.dead:
				p.log.Warn("the bridge died and is started again", "engine", p.engine, "pid", l.cmd.Process.Pid, "said", l.tail.String())
				p.setLink(nil, nil)
				pause = minPause
			case <-p.lifeCtx.Done():
				p.setLink(nil, connector.ErrClosed)
				l.stop(p.timeout + stopPatience)
				return
			}
		}
		if p.sleep(p.lifeCtx, pause) != nil {
			return
		}
		var err error
		if l, err = p.start(p.lifeCtx); err != nil {
			l, pause = nil, min(2*pause, maxPause)
		}
		p.setLink(l, err)
	}
}

func (p *process) sleep(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err() //nolint:wrapcheck // it is compared with nil
	}
}

func (p *process) setLink(l *link, failed error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link, p.failed = l, failed
	close(p.changed)
	p.changed = make(chan struct{})
}

// awaitLink returns the bridge, and waits while one is being started.
func (p *process) awaitLink(ctx context.Context) (*link, error) {
	for {
		p.mu.Lock()
		l, failed, changed := p.link, p.failed, p.changed
		p.mu.Unlock()
		switch {
		case l != nil:
			return l, nil
		case failed != nil:
			return nil, fmt.Errorf("the bridge is not running: %w", failed)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("the bridge is being started: %w", ctx.Err())
		}
	}
}

// call sends a request to the bridge and waits for the answer. After an error the caller does not
// own the buffer any more; after a put without an answer, the name is uncertain until it is
// removed.
func (p *process) call(ctx context.Context, op operation, b *buffer, size uint64, n name) (answer, error) {
	select {
	case p.calls <- struct{}{}:
	case <-ctx.Done():
		return answer{}, p.wrapError(op, b, fmt.Errorf("%d others are under way: %w", lanes, ctx.Err()))
	}
	l, err := p.awaitLink(ctx)
	if err != nil {
		<-p.calls
		return answer{}, p.wrapError(op, b, err)
	}
	ln := l.takeLane()
	over := func() {
		l.returnLane(ln)
		<-p.calls
	}
	ln.ask(op, b, size, string(n))
	if a, ok := ln.await(ctx); ok {
		over()
		if err = a.err(); err == nil {
			return a, nil
		}
		if a.bridgeDied && op == opPut {
			p.removeUncertain(n, nil)
		}
		return a, p.wrapError(op, b, err)
	}
	// The bridge owns the buffer until it has answered.
	after := func() {
		a, _ := ln.await(context.Background())
		over()
		if op == opGet && a.code == codeOK && !a.bridgeDied {
			p.putBack(b, a.size, n)
		} else if b != nil {
			p.buffers.put(b)
		}
	}
	if op == opPut {
		p.removeUncertain(n, after)
	} else {
		p.background.Go(after)
	}
	return answer{}, p.wrapError(op, nil, fmt.Errorf("no answer of the bridge, process %d, in time: %w", l.cmd.Process.Pid, ctx.Err()))
}

// putBack stores a value again that a get consumed after its caller's deadline, unless another
// value was put since.
func (p *process) putBack(b *buffer, size uint64, n name) {
	ctx, cancel := context.WithTimeout(p.lifeCtx, p.timeout+grace)
	defer cancel()
	_, err := p.call(ctx, opPutBack, b, size, n)
	if err == nil { // otherwise call has returned the buffer
		p.buffers.put(b)
	} else {
		p.log.Error("a value that was consumed after the deadline is lost", "engine", p.engine, "name", string(n), "error", err)
	}
}

// wrapError adds the operation and the engine, and makes the error an ErrUnavailable if it has no
// other kind. It frees the buffer, if there is one.
func (p *process) wrapError(op operation, b *buffer, err error) error {
	if b != nil {
		p.buffers.put(b)
	}
	for _, known := range []error{
		connector.ErrNotFound, connector.ErrFull, connector.ErrTooLarge, connector.ErrCorrupt, connector.ErrKey, connector.ErrMetadata, connector.ErrUnavailable, connector.ErrClosed,
	} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %s of %s through the bridge: %w", connector.ErrUnavailable, op, p.engine, err)
}

// removeUncertain removes the value that a failed put may have stored, after calling after. Puts
// and gets of the name wait until it has ended.
func (p *process) removeUncertain(n name, after func()) {
	over := make(chan struct{})
	p.mu.Lock()
	p.uncertain[n] = over
	p.mu.Unlock()
	p.background.Go(func() {
		if after != nil {
			after()
		}
		for pause := minPause; p.lifeCtx.Err() == nil; pause = min(2*pause, maxPause) {
			ctx, cancel := context.WithTimeout(p.lifeCtx, p.timeout+grace)
			_, err := p.call(ctx, opRemove, nil, 0, n)
			cancel()
			if err == nil || p.sleep(p.lifeCtx, pause) != nil {
				break
			}
		}
		p.mu.Lock()
		delete(p.uncertain, n)
		p.mu.Unlock()
		close(over)
	})
}

// awaitCertain waits until a name is not uncertain.
func (p *process) awaitCertain(ctx context.Context, n name) error {
	for {
		p.mu.Lock()
		over := p.uncertain[n]
		p.mu.Unlock()
		if over == nil {
			return nil
		}
		select {
		case <-over:
		case <-ctx.Done():
			return fmt.Errorf("%w: a put under this key failed, and is being undone: %w", connector.ErrUnavailable, ctx.Err())
		}
	}
}
