package pool

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

const (
	defaultArenaBytes = 256 << 20
	defaultArenas     = 4
	defaultSlots      = 4096

	minArenaBytes = 1 << 16
	maxArenaBytes = 1 << 38
	maxArenas     = 1 << 10
	maxSlots      = 1 << 20
)

// Options configure [New]. The zero value works.
type Options struct {
	// ArenaBytes is the size of each arena, which the device rounds up. Pieces are at most half as
	// large. Default 256 MiB.
	ArenaBytes int64
	// MaxBytes bounds the sum of all arenas. The pool has at least one. Default four arenas.
	MaxBytes int64
	// Slots bounds the pieces in use, with 64 bytes of host memory each. Default
	// 4096.
	Slots int

	// OnArena is called with each new arena, the first one before New returns, and OnArenaGone
	// before an arena is closed. Numbers begin with 1, are never reused, and have HandleBit if the
	// arena is a [*HandleArena]. Both run on the goroutine that calls New, Close or the methods of
	// the device, and must not block.
	OnArena     func(number uint32, arena cudaipc.Arena)
	OnArenaGone func(number uint32)
	// OnSpace is called, on its own goroutine, when an arena was closed: until then its memory
	// counts. Waiting allocations can then try again.
	OnSpace func()
}

func (o Options) withDefaults() Options {
	if o.ArenaBytes == 0 {
		o.ArenaBytes = defaultArenaBytes
		if o.MaxBytes > 0 {
			o.ArenaBytes = min(o.ArenaBytes, o.MaxBytes)
		}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = defaultArenas * o.ArenaBytes
	}
	if o.Slots == 0 {
		o.Slots = defaultSlots
	}
	if o.OnArena == nil {
		o.OnArena = func(uint32, cudaipc.Arena) {}
	}
	if o.OnSpace == nil {
		o.OnSpace = func() {}
	}
	if o.OnArenaGone == nil {
		o.OnArenaGone = func(uint32) {}
	}
	return o
}

// Validate reports the first option that [New] would refuse, with the defaults filled in. The error
// wraps cudaipc.ErrInvalid.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.ArenaBytes < minArenaBytes || o.ArenaBytes > maxArenaBytes:
		return fmt.Errorf("%w: ArenaBytes %d is not in [%d, %d]", cudaipc.ErrInvalid, o.ArenaBytes, int64(minArenaBytes), int64(maxArenaBytes))
	case o.MaxBytes < o.ArenaBytes || o.MaxBytes/o.ArenaBytes > maxArenas:
		return fmt.Errorf("%w: MaxBytes %d is not in [%d, %d], one to %d arenas of ArenaBytes", cudaipc.ErrInvalid, o.MaxBytes, o.ArenaBytes, maxArenas*o.ArenaBytes, maxArenas)
	}
	return validateSlots(o.Slots)
}

func validateSlots(slots int) error {
	if slots < 1 || slots > maxSlots {
		return fmt.Errorf("%w: Slots %d is not in [1, %d]", cudaipc.ErrInvalid, slots, maxSlots)
	}
	return nil
}
