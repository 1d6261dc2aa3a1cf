package segment

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// The generations of the format.
const (
	// ByMetadata is what vLLM-Omni wrote before 0.14: small values in the metadata,
	// others in segments without a meaning in their name.
	ByMetadata = 1
	// ByKey is what it writes since: segments named by their key, with a lock.
	ByKey = 2
)

const (
	defaultDir         = "/dev/shm"
	defaultTimeout     = 30 * time.Second
	defaultInlineBytes = 64 << 10
)

// Options configure a transport. The zero value works.
type Options struct {
	// Generation is how values are put: [ByMetadata] or [ByKey], which is the
	// default. What is got may be of either.
	Generation int
	// InlineBytes is the largest value that [ByMetadata] leaves in the metadata.
	InlineBytes int64
	// Timeout bounds how long a lock of another process is waited for. Default 30 s.
	Timeout time.Duration
	// TTL is how long a value that was put here may lie until somebody comes for
	// it; zero is for ever.
	TTL time.Duration
	// Dir is for tests: all others look in /dev/shm.
	Dir string
	// Log is told what was swept; nil discards.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if o.Generation == 0 {
		o.Generation = ByKey
	}
	if o.Generation != ByMetadata && o.Generation != ByKey {
		return o, fmt.Errorf("%w: there is no generation %d of the format", connector.ErrSettings, o.Generation)
	}
	if o.InlineBytes < 0 || o.Timeout < 0 || o.TTL < 0 {
		return o, fmt.Errorf("%w: bytes, timeout and TTL of segments are not negative", connector.ErrSettings)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Dir == "" {
		o.Dir = defaultDir
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Type returns the type of connector that this package implements, under a name.
func Type(name string) connector.Type {
	return connector.Type{
		Name: name,
		Options: []connector.Option{
			{
				Key: "generation", Kind: connector.Integer, Default: int64(ByKey), Min: ByMetadata, Max: ByKey,
				Doc: "How values are put: 2 as vLLM-Omni since 0.14, by key; 1 as before it, by metadata.",
			},
			{
				Key: "shm_threshold_bytes", Kind: connector.Integer, Default: int64(defaultInlineBytes),
				Doc: "The largest value that generation 1 leaves in the metadata.",
			},
			{
				Key: "timeout", Kind: connector.Duration, Default: defaultTimeout,
				Doc: "How long a lock of another process is waited for.",
			},
			{
				Key: "ttl", Kind: connector.Duration, Default: time.Duration(0),
				Doc: "How long a value may lie until somebody comes for it; 0 is for ever.",
			},
		},
		Open: func(_ context.Context, config connector.Config) (connector.Transport, error) {
			return New(Options{
				Generation:  int(config.Settings.Int("generation")),
				InlineBytes: config.Settings.Int("shm_threshold_bytes"),
				Timeout:     config.Settings.Duration("timeout"),
				TTL:         config.Settings.Duration("ttl"),
				Log:         config.Log,
			})
		},
	}
}
