package segment

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// The generations of the format.
const (
	// ByMetadata is the format before vLLM-Omni 0.14: small values in the metadata, others in
	// segments with anonymous names.
	ByMetadata = 1
	// ByKey is the format since: segments named by their key, with a lock.
	ByKey = 2
)

const (
	defaultDir     = "/dev/shm"
	defaultTimeout = 30 * time.Second
)

// Options configure a transport. The zero value works.
type Options struct {
	// Generation is the format of puts: [ByMetadata] or [ByKey], which is the default. Gets accept
	// both.
	Generation int
	// InlineBytes is the size of the largest value that goes into the metadata; a Get by key does
	// not find such values.
	InlineBytes int64
	// Timeout bounds the wait for a lock of another process. Default 30 s.
	Timeout time.Duration
	// TTL is how long a value of this transport stays if no reader gets it; zero is for ever.
	TTL time.Duration
	// Lasting is that of connector.Options: values have no owner. Cleanup removes values of all
	// lasting transports, and the segment with the key's name of any process.
	Lasting bool
	// Dir is for tests. Default /dev/shm.
	Dir string
	// Log receives the values that were swept; nil discards.
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
