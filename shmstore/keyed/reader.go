package keyed

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// dialTimeout bounds the wait for a busy listener to accept.
const dialTimeout = 5 * time.Second

// Reader is a process's side of a store of another process.
type Reader struct {
	reader       *shmstore.Reader
	codecs       *codec.Registry
	conn         *net.UnixConn
	owner        *process.Process // nil: the connection alone says whether it lives
	disconnected atomic.Bool      // the owner is gone, or the reader is closed
	closed       atomic.Bool
	watchEnded   chan struct{} // closed when the owner is not watched any more
}

// Dial makes this process a reader of the store that listens at the path: see [Store.Listen]. The reader decodes with
// the serializers of package codec, and with these. Dial waits for the owner, for seconds at most. The errors are
// [ErrOwnerGone] if no store listens, [shmstore.ErrTooManyReaders], and those of a path that another user owns, or
// could replace.
func Dial(path string, serializers ...codec.Serializer) (*Reader, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	defer cancel()
	conn, err := peer.Dial(ctx, path, peer.DialOptions{})
	if err != nil {
		return nil, dialError(path, err)
	}
	owner, err := peer.Watch(conn)
	if err != nil {
		_ = conn.Close() // nothing was sent
		return nil, dialError(path, err)
	}
	r, err := open(conn.Unix(), owner, serializers)
	if err != nil {
		return nil, fmt.Errorf("keyed: dial %s: %w", path, err)
	}
	return r, nil
}

// dialError adds [ErrOwnerGone] to the errors which mean that no store listens.
func dialError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, peer.ErrGone) {
		err = fmt.Errorf("%w: %w", ErrOwnerGone, err)
	}
	return fmt.Errorf("keyed: dial %s: %w", path, err)
}

// Open makes this process a reader of the store whose owner calls [Store.Admit] at the other end of the connection. It
// decodes with the serializers of package codec, and with these. The reader owns the connection from the call on, also
// after an error.
func Open(conn *net.UnixConn, serializers ...codec.Serializer) (*Reader, error) {
	r, err := open(conn, nil, serializers)
	if err != nil {
		return nil, fmt.Errorf("keyed: %w", err)
	}
	return r, nil
}

func open(conn *net.UnixConn, owner *process.Process, serializers []codec.Serializer) (*Reader, error) {
	r := &Reader{codecs: codec.Default(), conn: conn, owner: owner, watchEnded: make(chan struct{})}
	var err error
	for _, s := range serializers {
		if err == nil {
			err = r.codecs.Register(s)
		}
	}
	if err == nil {
		r.reader, err = shmstore.Attach(conn)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
		err = fmt.Errorf("%w: %w", ErrOwnerGone, err)
	}
	if err != nil {
		close(r.watchEnded)
		return nil, errors.Join(err, r.closeConn())
	}
	go r.watch()
	return r, nil
}

// watch detects that the owner is gone, or has removed this reader. It returns when the connection is closed.
func (r *Reader) watch() {
	defer close(r.watchEnded)
	if r.owner != nil { // a child that the owner has forked may keep the connection open
		defer r.owner.OnExit(func() { _ = r.conn.Close() })()
	}
	awaitDisconnect(r.conn)
	r.disconnected.Store(true)
}

// closeConn closes the connection and the watch on the owner.
func (r *Reader) closeConn() error {
	err := r.conn.Close()
	if errors.Is(err, net.ErrClosed) {
		err = nil // by watch, or by a Close before this
	}
	<-r.watchEnded
	if r.owner != nil {
		err = errors.Join(err, r.owner.Close())
	}
	return err
}

// Get collects a value that this reader was charged for. The errors are [shmstore.ErrStale] for an object that is gone,
// [shmstore.ErrNoDebt] if this reader was not charged, or has collected all charges, [shmstore.ErrCorrupt] for a handle
// that is not of this store, and [ErrOwnerGone].
func (r *Reader) Get(h shmstore.Handle) (*Value, error) {
	if r.disconnected.Load() {
		return nil, r.disconnectedError()
	}
	lease, err := r.reader.Take(h)
	if err != nil {
		return nil, fmt.Errorf("keyed: %w", err)
	}
	return &Value{lease: lease, codecs: r.codecs}, nil
}

// disconnectedError is the error of a reader whose connection is closed: [shmstore.ErrClosed] after Close, and else
// [ErrOwnerGone].
func (r *Reader) disconnectedError() error {
	if r.closed.Load() {
		return fmt.Errorf("keyed: %w", shmstore.ErrClosed)
	}
	return fmt.Errorf("keyed: %w", ErrOwnerGone)
}

// Drop settles one charge without reading. The errors are those of Get.
func (r *Reader) Drop(h shmstore.Handle) error {
	if r.disconnected.Load() {
		return r.disconnectedError()
	}
	if err := r.reader.Drop(h); err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	return nil
}

// Close ends the reader, and the owner removes it. The error is [shmstore.ErrBusy] while a value is not released: call
// Close again then. Until Close succeeds, the owner goes on charging the reader, and Get and Drop fail.
func (r *Reader) Close() error {
	r.closed.Store(true)
	if err := r.reader.Close(); err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	return r.closeConn()
}

// Value is a value from [Reader.Get]. It does not change until Release, even if the owner is gone.
type Value struct {
	lease  shmstore.Lease
	codecs *codec.Registry
}

// Bytes is the encoded value, a read-only view of shared memory until Release.
func (v *Value) Bytes() []byte { return v.lease.Bytes() }

// Decode decodes the value into a non-nil pointer. The serializer documents whether the result aliases Bytes.
func (v *Value) Decode(to any) error {
	s, err := v.codecs.ByID(codec.ID(v.lease.Handle().Codec))
	if err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	if err := s.Decode(v.Bytes(), to); err != nil {
		return fmt.Errorf("keyed: decode %d bytes into %T: %w", len(v.Bytes()), to, err)
	}
	return nil
}

// Release settles the charge. Call it once.
func (v *Value) Release() { v.lease.Release() }
