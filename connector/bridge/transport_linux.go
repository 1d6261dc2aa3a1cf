package bridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	// Pauses between two gets of Await: at first, and at most.
	minPoll = time.Millisecond
	maxPoll = 20 * time.Millisecond

	maxTrustedSize = 1 << 30 // size of metadata for which a buffer is made before the value is seen
	maxNames       = 64      // in a packet
	maxText        = 4 << 10 // of metadata
	firstPrune     = 1024    // own names before the transport asks which values were got
)

// A name is an edge and a key, in the bridge's format.
type name string

func nameOf(edge connector.Edge, key string) name {
	return name(edge.From + "\n" + edge.To + "\n" + key)
}

// key returns the key of a name.
func (n name) key() string { return strings.SplitN(string(n), "\n", 3)[2] }

// transport is one transport over a bridge.
type transport struct {
	process  *process
	lastSize atomic.Int64 // size of the last value that was got: the next may be as large

	mu      sync.Mutex
	own     map[name]struct{} // names of values that were put here, and not known to be got
	pruneAt int
	closed  bool
}

func open(ctx context.Context, engine string, options []connector.Option, config connector.Config) (connector.Transport, error) {
	if config.Lasting {
		return nil, fmt.Errorf("%w: values in %s are removed when the process that put them ends: use %s for lasting values",
			connector.ErrUnavailable, engine, "SharedMemoryConnector")
	}
	p, err := acquireProcess(ctx, engine, settingsMap(options, config.Settings), config)
	if err != nil {
		return nil, err
	}
	return &transport{process: p, own: make(map[name]struct{}), pruneAt: firstPrune}, nil
}

// settingsMap returns the settings in the bridge's format.
func settingsMap(options []connector.Option, settings connector.Settings) map[string]any {
	all := make(map[string]any, len(options))
	for _, o := range options {
		switch o.Kind { //nolint:exhaustive // the options have no other kinds
		case connector.Text:
			all[o.Key] = settings.Text(o.Key)
		case connector.Integer:
			all[o.Key] = settings.Int(o.Key)
		case connector.Duration:
			all[o.Key] = settings.Duration(o.Key).Seconds()
		}
	}
	return all
}

// Put implements [connector.Transport]. An empty value goes into the metadata: the stores have no
// empty values.
func (t *transport) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if t.isClosed() {
		return nil, connector.ErrClosed
	}
	if size == 0 {
		return connector.Inline(size, fill)
	}
	ctx, cancel := context.WithTimeout(ctx, t.process.timeout+grace)
	defer cancel()
	n := nameOf(edge, key)
	if err := t.process.awaitCertain(ctx, n); err != nil {
		return nil, err
	}
	b, err := t.process.buffers.get(size, false)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", connector.ErrFull, err)
	}
	if err := fill(b.data[:size]); err != nil {
		t.process.buffers.put(b)
		return nil, err
	}
	prune, ok := t.addOwn(n)
	if !ok {
		t.process.buffers.put(b)
		return nil, connector.ErrClosed
	}
	a, err := t.process.call(ctx, opPut, b, uint64(size), n) //nolint:gosec // a length
	if err != nil {
		t.mu.Lock()
		delete(t.own, n)
		t.mu.Unlock()
		return nil, err
	}
	t.process.buffers.put(b)
	if prune {
		t.prune(ctx)
	}
	meta := connector.Metadata{}
	if a.text != "" {
		err = json.Unmarshal([]byte(a.text), &meta)
	}
	return meta, err //nolint:wrapcheck // the bridge writes JSON
}

// SharesKeys implements [connector.KeySharer].
func (t *transport) SharesKeys() bool { return sharesKeys[t.process.engine] }

// withMetadata appends the metadata that the engine needs for a get to the name.
func (t *transport) withMetadata(n name, meta connector.Metadata) (name, error) {
	all := make(map[string]any)
	for _, key := range metadataKeys[t.process.engine] {
		if meta[key] != nil {
			all[key] = meta[key]
		}
	}
	if len(all) == 0 {
		return n, nil
	}
	text, err := json.Marshal(all)
	if err != nil || len(text) > maxText {
		return n, fmt.Errorf("%w: %d bytes of JSON, %w", connector.ErrMetadata, len(text), err)
	}
	return n + "\n" + name(text), nil
}

func (t *transport) isClosed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.closed
}

// addOwn records the name of a put, and reports whether it is time to prune, and whether the
// transport is open.
func (t *transport) addOwn(n name) (prune, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false, false
	}
	t.own[n] = struct{}{}
	return len(t.own) >= t.pruneAt, true
}

// Get implements [connector.Transport].
func (t *transport) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	if t.isClosed() {
		return nil, connector.ErrClosed
	}
	size, room := unknownSize, int(t.lastSize.Load())
	if meta["size"] != nil {
		said, err := meta.Int("size")
		if err != nil {
			return nil, err
		}
		size = uint64(said) //nolint:gosec // at least 0
		if said <= maxTrustedSize {
			room = int(said)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, t.process.timeout+grace)
	defer cancel()
	n := nameOf(edge, key)
	if err := t.process.awaitCertain(ctx, n); err != nil {
		return nil, err
	}
	telling, err := t.withMetadata(n, meta)
	if err != nil {
		return nil, err
	}
	for {
		b, err := t.process.buffers.get(room, true)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", connector.ErrFull, err)
		}
		a, err := t.process.call(ctx, opGet, b, size, telling)
		if err != nil {
			return nil, err
		}
		if a.code == codeSmall {
			t.process.buffers.put(b)
			room = int(a.size) //nolint:gosec // a length
			continue
		}
		t.lastSize.Store(int64(a.size)) //nolint:gosec // a length
		t.mu.Lock()
		delete(t.own, n)
		t.mu.Unlock()
		return &payload{b, int(a.size), &t.process.buffers}, nil //nolint:gosec // a length
	}
}

// Await implements [connector.Transport]. The stores do not announce puts, so it polls.
func (t *transport) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	for pause := minPoll; ; pause = min(2*pause, maxPoll) {
		got, err := t.Get(ctx, edge, key, meta)
		if err == nil || !errors.Is(err, connector.ErrNotFound) || errors.Is(err, errAlreadyGot) {
			return got, err
		}
		if ended := t.process.sleep(ctx, pause); ended != nil {
			return nil, fmt.Errorf("%w: %s", ended, err.Error())
		}
	}
}

// Cleanup implements [connector.Transport].
func (t *transport) Cleanup(ctx context.Context, key string) error {
	if t.isClosed() {
		return connector.ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, t.process.timeout+grace)
	defer cancel()
	return t.remove(ctx, slices.DeleteFunc(t.names(), func(n name) bool { return n.key() != key }))
}

func (t *transport) names() []name {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Keys(t.own))
}

func (t *transport) remove(ctx context.Context, names []name) error {
	return t.ask(ctx, opRemove, names, func(n name, _ string, _ int) { delete(t.own, n) })
}

// prune removes the names of values that others have got.
func (t *transport) prune(ctx context.Context) {
	_ = t.ask(ctx, opPresent, t.names(), func(n name, there string, i int) { // after a failure a later put tries again
		if i < len(there) && there[i] == '0' {
			delete(t.own, n)
		}
	})
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pruneAt = max(firstPrune, 2*len(t.own))
}

// ask sends an operation on names, and calls each for every name with the answer, with the lock
// held.
func (t *transport) ask(ctx context.Context, op operation, names []name, each func(n name, text string, i int)) error {
	for some := range slices.Chunk(names, maxNames) {
		text := make([]string, len(some))
		for i, n := range some {
			text[i] = string(n)
		}
		a, err := t.process.call(ctx, op, nil, 0, name(strings.Join(text, "\n")))
		if err != nil {
			return err
		}
		t.mu.Lock()
		for i, n := range some {
			each(n, a.text, i)
		}
		t.mu.Unlock()
	}
	return nil
}

// Close implements [connector.Transport].
func (t *transport) Close() error {
	t.mu.Lock()
	again := t.closed
	t.closed = true
	t.mu.Unlock()
	if again {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), t.process.timeout+grace)
	defer cancel()
	err := t.remove(ctx, t.names())
	t.process.release()
	return err
}

// payload is a value in a buffer.
type payload struct {
	buffer *buffer
	size   int
	pool   *buffers
}

// Bytes implements [connector.Payload].
func (p *payload) Bytes() []byte { return p.buffer.data[:p.size] }

// Release implements [connector.Payload].
func (p *payload) Release() { p.pool.put(p.buffer) }
