package keyed

import (
	"fmt"
	"net"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Reader is one process's end of a store of another process.
type Reader struct {
	reader *shmstore.Reader
	codecs *codec.Registry
}

// Open makes this process a reader of the store whose owner calls [Store.Admit] at the other end of the connection. It
// decodes with the serializers of package codec, and with these. The connection stays open as long as the reader.
func Open(conn *net.UnixConn, serializers ...codec.Serializer) (*Reader, error) {
	codecs := codec.Default()
	for _, s := range serializers {
		if err := codecs.Register(s); err != nil {
			return nil, fmt.Errorf("keyed: %w", err)
		}
	}
	r, err := shmstore.Attach(conn)
	if err != nil {
		return nil, fmt.Errorf("keyed: %w", err)
	}
	return &Reader{reader: r, codecs: codecs}, nil
}

// Get collects a value that this reader was charged for. The errors are [shmstore.ErrStale] of an object that is gone,
// [shmstore.ErrNoDebt] where it was not charged, or has collected all, and [shmstore.ErrCorrupt] of a handle that is none.
func (r *Reader) Get(h shmstore.Handle) (*Value, error) {
	lease, err := r.reader.Take(h)
	if err != nil {
		return nil, fmt.Errorf("keyed: %w", err)
	}
	return &Value{lease: lease, codecs: r.codecs}, nil
}

// Drop settles one charge without reading.
func (r *Reader) Drop(h shmstore.Handle) error { return r.reader.Drop(h) }

// Close ends the reader. It is [shmstore.ErrBusy] while a value was not released.
func (r *Reader) Close() error { return r.reader.Close() }

// Value is a value that was got.
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
