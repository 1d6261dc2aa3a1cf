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

// dialTimeout bounds the wait for a listener that has too much to do to accept.
const dialTimeout = 5 * time.Second

// Reader is one process's end of a store of another process.
type Reader struct {
	reader       *shmstore.Reader
	codecs       *codec.Registry
	conn         *net.UnixConn
	owner        *process.Process // nil: the connection alone says whether it lives
	disconnected atomic.Bool      // the owner is, or the reader is closed
	closed       atomic.Bool
	watchEnded   chan struct{} // closed when the owner is not watched any more
}

// Dial makes this process a reader of the store that listens at the path: see [Store.Listen]. It decodes with the
// serializers of package codec, and with these. It waits for the owner, for seconds at most. The errors are
// [ErrOwnerGone] where no store listens, [shmstore.ErrTooManyReaders], and those of a path that another user has, or
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

// dialError names the case that the package promises a name for.
func dialError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, peer.ErrGone) {
		err = fmt.Errorf("%w: %w", ErrOwnerGone, err)
	}
	return fmt.Errorf("keyed: dial %s: %w", path, err)
}

// Open makes this process a reader of the store whose owner calls [Store.Admit] at the other end of the connection. It
// decodes with the serializers of package codec, and with these. The connection is the reader's from the call on, also
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

// watch notices that the owner is gone, or has removed this reader. It ends with the connection.
func (r *Reader) watch() {
	defer close(r.watchEnded)
	if r.owner != nil { // a process that it has forked may have the connection, too
		defer r.owner.OnExit(func() { _ = r.conn.Close() })()
	}
	awaitDisconnect(r.conn)
	r.disconnected.Store(true)
}

// closeConn closes what is open beside the store's memory.
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

// Get collects a value that this reader was charged for. The errors are [shmstore.ErrStale] of an object that is gone,
// [shmstore.ErrNoDebt] where it was not charged, or has collected all, [shmstore.ErrCorrupt] of a handle that is none
// of this store, and [ErrOwnerGone].
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

// disconnectedError is why a reader whose connection has ended gets nothing: it was closed here, or the owner is gone.
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

// Close ends the reader: the owner removes it. It is [shmstore.ErrBusy] while a value was not released, and is called
// again then. Until it has succeeded the reader is charged, and gets and drops nothing.
func (r *Reader) Close() error {
	r.closed.Store(true)
	if err := r.reader.Close(); err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	return r.closeConn()
}

// Value is a value that was got. It stays what it is until Release, also when the owner is gone.
type Value struct {
	lease  shmstore.Lease
	codecs *codec.Registry
}

// Bytes is the encoded value, a read-only view of shared memory until Release.
func (v *Value) Bytes() []byte { return v.lease.Bytes() }

// Decode decodes the value into a non-nil pointer. Whether the result aliases Bytes is the serializer's to say.
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

// Release gives the value back. It is called once.
func (v *Value) Release() { v.lease.Release() }
