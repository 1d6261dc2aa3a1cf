package shm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/segment"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Name is the type's name in configurations.
const Name = "SharedMemoryConnector"

// The options, by their keys in configurations.
const (
	optMode      = "mode"
	optThreshold = "shm_threshold_bytes"
	optTTL       = "ttl"
	optTimeout   = "timeout"
	optRing      = "ring_bytes"
	optStore     = "store"
	optReaders   = "readers"

	optGeneration = "generation"
)

// The modes.
const (
	modeRing    = "ring"
	modeSegment = "segment"
)

const (
	// noThreshold leaves only empty values in the metadata.
	noThreshold      = -1
	defaultThreshold = 64 << 10
	defaultTTL       = 10 * time.Minute
	defaultTimeout   = 30 * time.Second
	defaultRing      = 64 << 20
	minRing          = 64 << 10
)

// Type returns the type, for a registry.
func Type() connector.Type {
	return connector.Type{
		Name: Name,
		Options: []connector.Option{
			{Key: optMode, Kind: connector.Text, Default: modeRing, Choices: []string{modeRing, modeSegment}, Doc: "Where values are kept: in the project's own store, or in named segments in the format of vLLM-Omni."},
			{Key: optThreshold, Kind: connector.Integer, Default: int64(noThreshold), Doc: "Values of up to so many bytes travel in the metadata, where no key finds them. Left out, it is 65536, and in segments of generation 2 none do."},
			{Key: optTTL, Kind: connector.Duration, Default: defaultTTL, Doc: "How long a value stays if no reader gets it; 0 is for ever."},
			{Key: optTimeout, Kind: connector.Duration, Default: defaultTimeout, Min: 1, Doc: "How long a put waits for room, and in segments for a lock that another process holds."},
			{Key: optGeneration, Kind: connector.Integer, Default: int64(segment.ByKey), Min: segment.ByMetadata, Max: segment.ByKey, Doc: "Of segments, how values are put: 2 as vLLM-Omni since 0.14, by key; 1 as before it, by metadata."},
			{Key: optRing, Kind: connector.Integer, Default: int64(defaultRing), Min: minRing, Doc: "The memory of a process that is attached to no host, in bytes."},
			{Key: optStore, Removed: "leave it out, and attach both processes to one host, which keeps the values, or take mode segment"},
			{Key: optReaders, Removed: "leave it out, together with store"},
		},
		Open: open,
	}
}

var modes = map[string]func(context.Context, connector.Config) (connector.Transport, error){
	modeRing:    openRing,
	modeSegment: openSegment,
}

func open(ctx context.Context, config connector.Config) (connector.Transport, error) {
	return modes[config.Settings.Text(optMode)](ctx, config)
}

// threshold returns the size of the largest value that travels in the metadata: orElse if the
// configuration does not set it.
func threshold(config connector.Config, orElse int64) int64 {
	if set := config.Settings.Int(optThreshold); set != noThreshold {
		return set
	}
	return orElse
}

// openSegment leaves values in the metadata as the configuration says; without that setting, as
// vLLM-Omni of that generation does.
func openSegment(_ context.Context, config connector.Config) (connector.Transport, error) {
	generation, inlineBytes := int(config.Settings.Int(optGeneration)), int64(0)
	switch {
	case generation == segment.ByMetadata:
		inlineBytes = threshold(config, defaultThreshold)
	case !config.Lasting: // the reader of a lasting value has only the key
		inlineBytes = threshold(config, 0)
	}
	return segment.New(segment.Options{ //nolint:wrapcheck // it says what it did
		Generation:  generation,
		InlineBytes: inlineBytes,
		Timeout:     config.Settings.Duration(optTimeout),
		TTL:         config.Settings.Duration(optTTL),
		Lasting:     config.Lasting,
		Log:         config.Log,
	})
}

func openRing(_ context.Context, config connector.Config) (connector.Transport, error) {
	under, err := findRing(config)
	if err != nil {
		return nil, err
	}
	t := &transport{Transport: under, threshold: threshold(config, defaultThreshold), timeout: config.Settings.Duration(optTimeout)}
	if config.Lasting {
		t.threshold = noThreshold // the reader of a lasting value has only the key
	}
	if p, ok := under.(connector.Peeker); ok {
		return peekTransport{t, p}, nil
	}
	return t, nil
}

// findRing returns a transport of the host's exchange, or of the ring that this process's
// transports share.
func findRing(config connector.Config) (connector.Transport, error) {
	switch {
	case config.Exchange != nil:
		return config.Exchange.OpenExchange(config.Lasting) //nolint:wrapcheck // it says what it did
	case config.Lasting:
		return nil, fmt.Errorf("%w: what lies in this process's ring ends with it: attach to a host", connector.ErrUnavailable)
	}
	return ownRing.open(config)
}

// transport leaves small values in the metadata.
type transport struct {
	connector.Transport
	threshold int64
	timeout   time.Duration
}

// peekTransport is a transport whose values can be peeked at.
type peekTransport struct {
	*transport
	connector.Peeker
}

// Put implements [connector.Transport].
func (t *transport) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if int64(size) <= t.threshold {
		return connector.Inline(size, fill)
	}
	patience, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	meta, err := t.Transport.Put(patience, edge, key, size, fill)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && errors.Is(err, shmstore.ErrFull) {
		return nil, fmt.Errorf("%w within %v: %w", connector.ErrFull, t.timeout, err)
	}
	return meta, err
}
