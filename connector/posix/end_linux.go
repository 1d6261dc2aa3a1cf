package posix

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/inotify"
)

// metaStore is the key of the store's name in metadata, beside the value's number.
const metaStore = "store"

// An End is one end of a store, and a transport: the one that puts, which creates the
// store, or one that gets, which opens it.
type End struct {
	opts  Options
	files files
	done  chan struct{}

	mu      sync.Mutex
	owner   *owner
	reader  *reader
	watch   *inotify.Watch // nil until somebody waits
	changed chan struct{}  // closed when something did; nil while nobody waits
	closed  bool
}

var (
	_ connector.Transport = (*End)(nil)
	_ connector.Peeker    = (*End)(nil)
)

// New makes an end. The store is created with its first Put, and opened with its first
// Get.
func New(opts Options) (connector.Transport, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	f, err := openFiles(opts.Dir, opts.Name)
	if err != nil {
		return nil, err
	}
	return &End{opts: opts, files: f, done: make(chan struct{})}, nil
}

// Put implements [connector.Transport].
func (e *End) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	o, err := e.creator()
	if err != nil {
		return nil, err
	}
	defer o.leave()
	return o.put(ctx, address{edge, key}, size, fill)
}

// creator returns the store to put into, which is in use then.
func (e *End) creator() (*owner, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.closed:
		return nil, connector.ErrClosed
	case e.owner != nil:
		e.owner.again()
		return e.owner, nil
	case e.opts.Lasting:
		return nil, fmt.Errorf("%w: the store %s ends with the process that creates it, and this one is to end before anybody comes: put through a host, or with mode segment",
			connector.ErrUnavailable, e.opts.Name)
	case e.reader != nil && e.reader.alive():
		return nil, fmt.Errorf("%w: process %d alone puts into the store %s, which this end has opened to get: put into a store of another name",
			connector.ErrUnavailable, e.reader.record.pid, e.opts.Name)
	}
	e.forget()
	o, err := create(e.opts, e.files, e.wake)
	if err != nil {
		return nil, err
	}
	e.owner = o
	o.again()
	return o, nil
}

// A side is a store as one end has it. Its use is the caller's.
type side interface {
	take(ctx context.Context, at address, number uint64) (connector.Payload, error)
	peek(ctx context.Context, at address, number uint64) (connector.Payload, error)
	leave()
}

// side returns the store to get from, which is in use then, and nil if there is none.
func (e *End) side() (side, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, connector.ErrClosed
	}
	if e.owner != nil {
		e.owner.again()
		return e.owner, nil
	}
	if e.reader != nil && !e.reader.alive() {
		e.forget()
	}
	if e.reader == nil {
		r, err := attach(e.files)
		if errors.Is(err, errNone) {
			return nil, nil //nolint:nilnil // as it says
		}
		if err != nil {
			return nil, fmt.Errorf("open the store %s: %w", e.opts.Name, err)
		}
		e.reader = r
	}
	e.reader.again()
	return e.reader, nil
}

// forget lets go of a store whose creator is gone.
func (e *End) forget() {
	if e.reader != nil {
		e.reader.finish()
		e.reader = nil
	}
}

// Get implements [connector.Transport].
func (e *End) Get(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.got(e.read(ctx, edge, key, meta, side.take))
}

// Peek implements [connector.Peeker].
func (e *End) Peek(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	return e.read(ctx, edge, key, meta, side.peek)
}

// read takes or peeks at a value, on the side that the end has.
func (e *End) read(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata,
	how func(side, context.Context, address, uint64) (connector.Payload, error),
) (connector.Payload, error) {
	number, err := e.number(meta)
	if err != nil {
		return nil, err
	}
	s, err := e.side()
	if err != nil {
		return nil, err
	}
	if s == nil {
		return nil, connector.ErrNotFound
	}
	defer s.leave()
	return how(s, ctx, address{edge, key}, number)
}

func (e *End) got(p connector.Payload, err error) (connector.Payload, error) {
	if err == nil {
		faultpoint.Hit("posix-got")
	}
	return p, err
}

// number reads the metadata. Those of other transports are ignored.
func (e *End) number(meta connector.Metadata) (uint64, error) {
	if meta[metaStore] == nil {
		return 0, nil
	}
	name, err := meta.Text(metaStore)
	if err != nil {
		return 0, err
	}
	if name != e.opts.Name {
		return 0, fmt.Errorf("%w: the value was put into the store %.100q, and this is %s", connector.ErrMetadata, name, e.opts.Name)
	}
	return ring.Number(meta)
}

// Await implements [connector.Transport]. What has a number was there: it is not
// waited for.
func (e *End) Await(ctx context.Context, edge connector.Edge, key string, meta connector.Metadata) (connector.Payload, error) {
	number, err := e.number(meta)
	if err != nil {
		return nil, err
	}
	if number != 0 {
		return e.Get(ctx, edge, key, meta)
	}
	for {
		// Whoever changes something looks for those who wait afterwards; here it is
		// said first, and looked then.
		changed, err := e.listen()
		if err != nil {
			return nil, err
		}
		p, err := e.tryOrWait(ctx, address{edge, key}, changed)
		if p != nil || err != nil {
			return e.got(p, err)
		}
	}
}

// tryOrWait gets a value, or waits until something has changed.
func (e *End) tryOrWait(ctx context.Context, at address, changed <-chan struct{}) (connector.Payload, error) {
	s, err := e.side()
	if err != nil {
		return nil, err
	}
	if s != nil {
		defer s.leave()
		if r, ok := s.(*reader); ok {
			r.own.waiting.Add(1)
			defer r.own.waiting.Add(^uint64(0))
		}
		p, err := s.take(ctx, at, 0)
		if !errors.Is(err, connector.ErrNotFound) {
			return p, err //nolint:wrapcheck // as it is
		}
	}
	select {
	case <-changed:
		return nil, nil //nolint:nilnil // it is to look again
	case <-ctx.Done():
		return nil, ctx.Err() //nolint:wrapcheck // the context's
	case <-e.done:
		return nil, connector.ErrClosed
	}
}

// listen returns what is closed with the next change, of which those who wait here are
// told from now on.
func (e *End) listen() (<-chan struct{}, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return nil, connector.ErrClosed
	}
	if e.changed == nil {
		e.changed = make(chan struct{})
	}
	if e.owner != nil {
		return e.changed, nil // all changes are its own
	}
	if e.watch == nil {
		w := inotify.New(func(name []byte) {
			if len(name) == 0 || string(name) == e.files.head {
				e.wake()
			}
		})
		if err := w.Add(e.files.path, unix.IN_CREATE); err != nil {
			w.Close()
			return nil, fmt.Errorf("%w: %w", connector.ErrUnavailable, err)
		}
		e.watch = w
	}
	// Each store has a first file of its own. Where there is none it is made later, and
	// the directory tells.
	if err := e.watch.Add(e.files.path+"/"+e.files.head, unix.IN_MODIFY); err != nil && !errors.Is(err, unix.ENOENT) {
		return nil, fmt.Errorf("%w: %w", connector.ErrUnavailable, err)
	}
	return e.changed, nil
}

// wake has those look again who wait here.
func (e *End) wake() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.changed != nil {
		close(e.changed)
		e.changed = nil
	}
}

// Cleanup implements [connector.Transport].
func (e *End) Cleanup(_ context.Context, key string) error {
	e.mu.Lock()
	o, closed := e.owner, e.closed
	if o != nil && !closed {
		o.again()
	}
	e.mu.Unlock()
	if closed {
		return connector.ErrClosed
	}
	if o != nil {
		defer o.leave()
		o.cleanup(key)
	}
	return nil
}

// Close implements [connector.Transport]. It ends a store that was created here.
func (e *End) Close() error {
	e.mu.Lock()
	if e.closed {
		e.mu.Unlock()
		return nil
	}
	e.closed = true
	close(e.done)
	o, w := e.owner, e.watch
	e.forget()
	e.mu.Unlock()
	if w != nil {
		w.Close()
	}
	if o != nil {
		o.close()
	}
	e.files.close()
	return nil
}
