package connector

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Options open a connector.
type Options struct {
	// Extra holds the settings, as a configuration has them under extra.
	Extra map[string]any
	// Serializer encodes values; nil is [codec.MsgpackSerializer].
	Serializer codec.Serializer
	// Exchange is the host's exchange, in a process that is attached to a host.
	Exchange Exchange
	// Lasting values outlive the connector and its process, until a Get, a Cleanup by a lasting
	// connector, or the sweep removes them. A program that may end before the receiver starts sets
	// it.
	Lasting bool
	// Log receives events that no caller receives as an error; nil discards.
	Log *slog.Logger
}

// A Connector hands values over along edges.
type Connector struct {
	typ        string
	transport  Transport
	serializer codec.Serializer
	counters   counters
}

// Open opens a connector of a type.
func (r *Registry) Open(ctx context.Context, typ string, opts Options) (*Connector, error) {
	t, err := r.Type(typ)
	if err != nil {
		return nil, err
	}
	settings, err := t.Settings(opts.Extra)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", typ, err)
	}
	if opts.Log == nil {
		opts.Log = discard
	}
	transport, err := t.Open(ctx, Config{Settings: settings, Exchange: opts.Exchange, Lasting: opts.Lasting, Log: opts.Log})
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", typ, err)
	}
	return New(typ, transport, opts.Serializer), nil
}

// New makes a connector over a transport. Close of the connector closes the transport. A nil
// serializer is [codec.MsgpackSerializer].
func New(typ string, transport Transport, serializer codec.Serializer) *Connector {
	if serializer == nil {
		serializer = codec.MsgpackSerializer{}
	}
	return &Connector{typ: typ, transport: transport, serializer: serializer}
}

// SharesKeys reports whether one key names one value on all edges: see [KeySharer].
func (c *Connector) SharesKeys() bool {
	s, ok := c.transport.(KeySharer)
	return ok && s.SharesKeys()
}

// Put encodes a value and stores it under the key, for one Get on the same edge.
// It returns the encoded size and the metadata for that Get. When it fails,
// nothing was put.
func (c *Connector) Put(ctx context.Context, edge Edge, key string, value any) (size int, meta Metadata, err error) {
	payload, err := c.encode(value)
	if err == nil {
		size, meta, err = c.put(ctx, edge, key, payload)
	}
	if err != nil {
		return 0, nil, c.wrapError("put", edge, key, err)
	}
	c.counters.put(size, meta)
	return size, meta, nil
}

// PutBytes is Put for a value that is encoded already.
func (c *Connector) PutBytes(ctx context.Context, edge Edge, key string, payload []byte) (size int, meta Metadata, err error) {
	size, meta, err = c.put(ctx, edge, key, encodedValue{len(payload), func(dst []byte) error { codec.Copy(dst, payload); return nil }})
	if err != nil {
		return 0, nil, c.wrapError("put", edge, key, err)
	}
	c.counters.put(size, meta)
	return size, meta, nil
}

func (c *Connector) put(ctx context.Context, edge Edge, key string, payload encodedValue) (int, Metadata, error) {
	if err := c.check(ctx, edge, key); err != nil {
		return 0, nil, err
	}
	size := payload.size
	meta, err := c.transport.Put(ctx, edge, key, size, payload.fill)
	if err != nil {
		return 0, nil, err
	}
	if meta == nil { // the transport returned no metadata
		meta = Metadata{}
	}
	meta[metaSize] = size
	return size, meta, nil
}

// check makes the checks that all transports share. A value in the metadata reaches no transport,
// so the connector itself refuses it once it is closed.
func (c *Connector) check(ctx context.Context, edge Edge, key string) error {
	if c.counters.closed.Load() {
		return ErrClosed
	}
	return errors.Join(ctx.Err(), edge.Check(), CheckKey(key))
}

// Get returns the value under the key and consumes it, by the metadata of its Put, or by the key
// alone (nil metadata) where the transport can. It does not wait: without a value it is
// [ErrNotFound].
func (c *Connector) Get(ctx context.Context, edge Edge, key string, meta Metadata) (*Value, error) {
	return c.getValue(ctx, "get", c.transport.Get, edge, key, meta)
}

// Peek is Get without consuming the value. Where the transport is no [Peeker], it is
// [ErrUnavailable].
func (c *Connector) Peek(ctx context.Context, edge Edge, key string, meta Metadata) (*Value, error) {
	peeker, ok := c.transport.(Peeker)
	if !ok {
		return nil, c.wrapError("peek", edge, key, fmt.Errorf("%w: this transport hands each value to one reader, which consumes it: Get it", ErrUnavailable))
	}
	return c.getValue(ctx, "peek", peeker.Peek, edge, key, meta)
}

// Await is Get, but waits until there is a value or the context ends.
func (c *Connector) Await(ctx context.Context, edge Edge, key string, meta Metadata) (*Value, error) {
	return c.getValue(ctx, "await", c.transport.Await, edge, key, meta)
}

type getter func(context.Context, Edge, string, Metadata) (Payload, error)

func (c *Connector) getValue(ctx context.Context, op string, get getter, edge Edge, key string, meta Metadata) (*Value, error) {
	payload, err := c.getPayload(ctx, get, edge, key, meta.For(key))
	if err != nil {
		return nil, c.wrapError(op, edge, key, err)
	}
	c.counters.got(payload)
	return &Value{payload: payload, serializer: c.serializer}, nil
}

func (c *Connector) getPayload(ctx context.Context, get getter, edge Edge, key string, meta Metadata) (Payload, error) {
	if err := c.check(ctx, edge, key); err != nil {
		return nil, err
	}
	payload, ok, err := meta.inline()
	if err != nil {
		return nil, err
	}
	if ok {
		return inline(payload), nil
	}
	return get(ctx, edge, key, meta)
}

// Cleanup releases the values that this connector put under exactly this key, on any edge, and that
// no Get consumed. No such value is no error.
func (c *Connector) Cleanup(ctx context.Context, key string) error {
	err := CheckKey(key)
	if err == nil {
		err = c.transport.Cleanup(ctx, key)
	}
	if err != nil {
		return c.wrapError("cleanup", Edge{}, key, err)
	}
	c.counters.cleanups.Add(1)
	return nil
}

// Close reclaims all values that this connector put and that no Get consumed. Values that were got
// stay readable until they are released.
func (c *Connector) Close() error {
	c.counters.closed.Store(true)
	if err := c.transport.Close(); err != nil {
		return fmt.Errorf("close %s: %w", c.typ, err)
	}
	return nil
}

// wrapError counts an error and adds the operation, the edge and the key.
func (c *Connector) wrapError(op string, edge Edge, key string, err error) error {
	c.counters.failed(err)
	return &Error{Op: op, Type: c.typ, Edge: edge, Key: key, Err: err}
}

// encodedValue is a value of a known size, and the function that writes it into a transport's
// memory.
type encodedValue struct {
	size int
	fill func(dst []byte) error
}

// encode encodes a value of a known size in place, and any other beforehand.
func (c *Connector) encode(value any) (encodedValue, error) {
	if sizer, ok := c.serializer.(codec.Sizer); ok {
		if size, ok := sizer.Size(value); ok {
			return encodedValue{size, func(dst []byte) error { return encodeError(sizer.EncodeInto(dst, value)) }}, nil
		}
	}
	payload, err := c.serializer.Append(nil, value)
	if err != nil {
		return encodedValue{}, encodeError(err)
	}
	return encodedValue{len(payload), func(dst []byte) error { codec.Copy(dst, payload); return nil }}, nil
}

func encodeError(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrEncode, err)
}
