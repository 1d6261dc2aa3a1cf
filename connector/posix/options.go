package posix

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const (
	// MaxNameBytes is the longest name of a store. With what is added it must fit
	// into the name of a file.
	MaxNameBytes = 100
	// MaxReaders is the number of places that a store can have.
	MaxReaders = shmstore.MaxReaders

	defaultDir     = "/dev/shm"
	defaultBytes   = 64 << 20
	defaultTimeout = 30 * time.Second
	defaultLook    = time.Second
	leastBytes     = 64 << 10

	// perArena: a value may take half of the memory, so that one can be written while
	// another is read.
	perArena = 2
)

// Options configure an end. All but the name have defaults.
type Options struct {
	// Name is the store's: letters, digits, - and _, at most [MaxNameBytes] of them.
	Name string
	// Readers is how many processes may open the store at a time, each with one end.
	// Default 1, at most [MaxReaders]. It is the creator's to say.
	Readers int
	// Bytes is the memory for values. Default 64 MiB, at least 64 KiB. It is the
	// creator's to say.
	Bytes int64
	// Timeout bounds how long a put waits for room. Default 30 s.
	Timeout time.Duration
	// TTL is how long a value may lie until somebody comes for it; zero is for ever.
	TTL time.Duration
	// LookEvery is how often a creator looks for readers that died, and for values that
	// were got or whose time is over, while there are any and nobody tells it. Default
	// 1 s.
	LookEvery time.Duration
	// Lasting is that of connector.Options: such an end gets, and puts nothing,
	// because what it puts would be gone with its process.
	Lasting bool
	// Dir is for tests: all others look in /dev/shm.
	Dir string
	// Log is told what was swept; nil discards.
	Log *slog.Logger
}

func (o Options) withDefaults() (Options, error) {
	if err := CheckName(o.Name); err != nil {
		return o, err
	}
	if o.Readers == 0 {
		o.Readers = 1
	}
	if o.Bytes == 0 {
		o.Bytes = defaultBytes
	}
	switch {
	case o.Readers < 1 || o.Readers > MaxReaders:
		return o, fmt.Errorf("%w: a store has 1 to %d readers, not %d", connector.ErrSettings, MaxReaders, o.Readers)
	case o.Bytes < leastBytes:
		return o, fmt.Errorf("%w: a store has at least %d bytes, not %d", connector.ErrSettings, leastBytes, o.Bytes)
	case o.Timeout < 0 || o.TTL < 0 || o.LookEvery < 0:
		return o, fmt.Errorf("%w: timeout, TTL and looks of a store are not negative", connector.ErrSettings)
	}
	if o.LookEvery == 0 {
		o.LookEvery = defaultLook
	}
	if o.TTL > 0 {
		o.LookEvery = min(o.TTL, o.LookEvery)
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

// CheckName refuses what is no name of a store. Without dots, the files of one store
// are never those of another.
func CheckName(name string) error {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_'
	}
	if name == "" || len(name) > MaxNameBytes || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return fmt.Errorf("%w: %.64q is no name of a store: it takes 1 to %d letters, digits, - and _", connector.ErrSettings, name, MaxNameBytes)
	}
	return nil
}
