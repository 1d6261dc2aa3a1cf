package connector

import (
	"context"
	"log/slog"
)

// A Transport moves encoded values. Each kind of connector implements it, with the promises of the
// package documentation; connectortest.Run checks them. The connector has checked keys and edges.
// The methods are safe for concurrent use.
type Transport interface {
	// Put stores a payload of size bytes under the key. It calls fill once, with memory that no
	// other reader sees yet; it returns fill's error unchanged, and then nothing was put. The
	// metadata are for a Get of the same type, and may be nil; the connector adds the key "size".
	Put(ctx context.Context, edge Edge, key string, size int, fill func(dst []byte) error) (Metadata, error)
	// Get consumes the value under the key, without waiting for a Put. Metadata may be nil; those
	// of another connector are ignored.
	Get(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
	// Await is Get, but waits for a Put.
	Await(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
	// Cleanup releases the values that this transport put under exactly this key, on any edge, and
	// that no Get consumed. No such value is no error.
	Cleanup(ctx context.Context, key string) error
	// Close reclaims all values that this transport put and that no Get consumed. Payloads that
	// were got stay readable.
	Close() error
}

// An Exchange holds the values that a host and the processes attached to it put and get. Each
// transport that it opens cleans up its own values; a lasting transport keeps them, as
// [Config].Lasting says. A bus implements Exchange, and so does a node.
type Exchange interface {
	OpenExchange(lasting bool) (Transport, error)
}

// A Peeker is a transport that can also read a value without consuming it.
type Peeker interface {
	Peek(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
}

// A KeySharer is a transport that may have one value for a key on all edges. A sender that puts on
// two edges then uses two keys.
type KeySharer interface {
	SharesKeys() bool
}

// A Payload is an encoded value that was got. Bytes are valid until Release; the caller does not
// write to them.
type Payload interface {
	Bytes() []byte
	// Release releases the memory. The caller calls it once.
	Release()
}

// Inline returns metadata that contain the payload, for transports that leave small payloads there.
func Inline(size int, fill func(dst []byte) error) (Metadata, error) {
	payload := make([]byte, size)
	if err := fill(payload); err != nil {
		return nil, err
	}
	return Metadata{metaInline: payload}, nil
}

// A Type is a kind of connector that a program can open.
type Type struct {
	// Name is the type's name in configurations, such as SharedMemoryConnector.
	Name string
	// Options are the settings that the type defines. All other keys are left to the stages.
	Options []Option
	// Open opens a transport. The transport does not use the config after Close.
	Open func(ctx context.Context, config Config) (Transport, error)
}

// A Config holds the arguments of [Type].Open.
type Config struct {
	// Settings are the values of the type's options.
	Settings Settings
	// Exchange is the exchange of the host that this process is attached to; nil in a process that
	// is attached to none.
	Exchange Exchange
	// Lasting is that of [Options]: Close and the end of the process reclaim nothing, and Cleanup
	// releases values of any lasting connector. A transport that cannot do that refuses, with
	// ErrUnavailable.
	Lasting bool
	// Log is never nil.
	Log *slog.Logger
}
