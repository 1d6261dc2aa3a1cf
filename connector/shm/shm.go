package shm

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
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
)

// The modes.
const (
	modeRing    = "ring"
	modeSegment = "segment"
)

const (
	defaultThreshold = 64 << 10
	defaultTTL       = 10 * time.Minute
	defaultTimeout   = 30 * time.Second
	defaultRing      = 64 << 20
	leastRing        = 64 << 10
)

// Type returns the type, to be registered.
func Type() connector.Type {
	return connector.Type{
		Name: Name,
		Options: []connector.Option{
			{Key: optMode, Kind: connector.Text, Default: modeRing, Choices: []string{modeRing, modeSegment}, Doc: "Where values lie: in the project's own store, or in named segments in the format of vLLM-Omni."},
			{Key: optThreshold, Kind: connector.Integer, Default: int64(defaultThreshold), Doc: "Values of up to so many bytes travel in the metadata."},
			{Key: optTTL, Kind: connector.Duration, Default: defaultTTL, Doc: "How long a value may lie until somebody comes for it; 0 is for ever."},
			{Key: optTimeout, Kind: connector.Duration, Default: defaultTimeout, Doc: "How long a put waits for room."},
			{Key: optRing, Kind: connector.Integer, Default: int64(defaultRing), Min: leastRing, Doc: "The memory of a process that is attached to no host, in bytes."},
		},
		Open: open,
	}
}

// modes open transports for values that are not inline.
var modes = map[string]func(context.Context, connector.Config) (connector.Transport, error){
	modeRing: openRing,
	modeSegment: func(context.Context, connector.Config) (connector.Transport, error) {
		return nil, fmt.Errorf("%w: this program has no mode %q of %s: use mode %q", connector.ErrUnavailable, modeSegment, Name, modeRing)
	},
}

func open(ctx context.Context, config connector.Config) (connector.Transport, error) {
	under, err := modes[config.Settings.Text(optMode)](ctx, config)
	if err != nil {
		return nil, err
	}
	return &transport{Transport: under, threshold: config.Settings.Int(optThreshold), timeout: config.Settings.Duration(optTimeout)}, nil
}

// openRing finds the ring that this process's transports share.
func openRing(_ context.Context, config connector.Config) (connector.Transport, error) {
	switch x := config.Exchange.(type) {
	case nil:
		return own.open(config)
	case connector.Exchange:
		return x.Open(), nil
	default:
		return nil, fmt.Errorf("%w: %T is no exchange", connector.ErrUnavailable, x)
	}
}

// transport leaves small values in the metadata.
type transport struct {
	connector.Transport
	threshold int64
	timeout   time.Duration
}

// Put implements [connector.Transport].
func (t *transport) Put(ctx context.Context, edge connector.Edge, key string, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	if int64(size) <= t.threshold {
		return connector.Inline(size, fill)
	}
	if t.timeout <= 0 {
		return t.Transport.Put(ctx, edge, key, size, fill)
	}
	patience, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	meta, err := t.Transport.Put(patience, edge, key, size, fill)
	if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) {
		return nil, fmt.Errorf("%w within %v: %w", connector.ErrFull, t.timeout, err)
	}
	return meta, err
}
