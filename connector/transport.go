package connector

import (
	"context"
	"log/slog"
)

// A Transport moves encoded values. It is what a kind of connector implements, as
// the package describes; connectortest.Run checks it. Keys and edges have been
// checked. Its methods are safe for concurrent use.
type Transport interface {
	// Put stores a payload of size bytes under the key. Fill writes it, once, into
	// memory that nobody else reads yet; its error is returned as it is, and
	// then nothing was put. The metadata are for a Get of the same type, and may be
	// nil; the key "size" is added to them.
	Put(ctx context.Context, edge Edge, key string, size int, fill func(dst []byte) error) (Metadata, error)
	// Get takes what lies under the key, without waiting for it to be put. Metadata
	// may be nil, or another connector's, which are ignored.
	Get(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
	// Await is Get, but waits until something is put.
	Await(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
	// Cleanup releases the values that this transport put under exactly this key, on any
	// edge, and that were not got. That there is none is no error.
	Cleanup(ctx context.Context, key string) error
	// Close reclaims all that this transport put and nobody got. Payloads that
	// were got stay readable.
	Close() error
}

// An Exchange is where a host and the processes that are attached to it put and
// get values. Each transport that is opened cleans up what it has put by itself; one
// that is lasting does as [Config].Lasting says. A bus is one, and so is a node.
type Exchange interface {
	OpenExchange(lasting bool) (Transport, error)
}

// A Peeker is a transport that can also read what lies under a key and leave it
// there.
type Peeker interface {
	Peek(ctx context.Context, edge Edge, key string, meta Metadata) (Payload, error)
}

// A KeySharer is a transport that may have one place for a key, whatever the edge: who
// puts on two edges takes two keys then.
type KeySharer interface {
	SharesKeys() bool
}

// A Payload is an encoded value that was got. Bytes are valid until Release,
// and are not to be written to.
type Payload interface {
	Bytes() []byte
	// Release gives the memory back. It is called once.
	Release()
}

// Inline returns metadata that carry the payload themselves, for transports that
// leave small ones there.
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
	// Options are the settings that it defines. All others are left to the
	// stages.
	Options []Option
	// Open opens a transport. Nothing of the config is used after Close.
	Open func(ctx context.Context, config Config) (Transport, error)
}

// A Config is what a transport is opened with.
type Config struct {
	// Settings are those of the type's options.
	Settings Settings
	// Exchange is that of the host that this process is attached to, for
	// transports that work through it; nil in a process that is attached to none.
	Exchange Exchange
	// Lasting is that of the connector's options: Close and the end of the process
	// reclaim nothing, and Cleanup takes what any lasting connector put. A transport
	// that cannot do that refuses, with ErrUnavailable.
	Lasting bool
	// Log is never nil.
	Log *slog.Logger
}
