package segment

import (
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
	defaultDir     = "/dev/shm"
	defaultTimeout = 30 * time.Second
)

// Options configure a transport. The zero value works.
type Options struct {
	// Generation is how values are put: [ByMetadata] or [ByKey], which is the
	// default. What is got may be of either.
	Generation int
	// InlineBytes is the largest value that is left in the metadata, where no key finds it.
	InlineBytes int64
	// Timeout bounds how long a lock of another process is waited for. Default 30 s.
	Timeout time.Duration
	// TTL is how long a value that was put here may lie until somebody comes for
	// it; zero is for ever.
	TTL time.Duration
	// Lasting is that of connector.Options: what is put is nobody's. Cleanup takes
	// what any lasting transport put, and the segment of that name whoever put it.
	Lasting bool
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
