package shmstore

import (
	"fmt"
	"runtime"

	"github.com/omnibus-runtime/omnibus/codec"
)

// Memory is where the segments of a store live.
type Memory int

const (
	// Auto is Shared where the platform has it, and Heap elsewhere.
	Auto Memory = iota
	// Shared memory can be read by other processes, see [Attach]. Linux only.
	Shared
	// Heap memory serves the owner's process alone.
	Heap
)

func (m Memory) String() string {
	switch m {
	case Auto:
		return "auto"
	case Shared:
		return "shared"
	case Heap:
		return "heap"
	default:
		return fmt.Sprintf("Memory(%d)", int(m))
	}
}

const (
	defaultArenaBytes = 64 << 20
	bytesPerSlot      = 1 << 10
	defaultMinSlots   = 64
	objectsPerArena   = 4

	minArenaBytes = 4 << 10
	maxArenaBytes = 1 << 46 // well inside the 47 bits of a user address space
	maxSlots      = 1 << 28 // a directory of 16 GiB
)

// Options configure [Create]. The zero value works.
type Options struct {
	// ArenaBytes is the room for payloads, in bytes; each takes 16 bytes more
	// and starts on a cache line. Default 64 MiB.
	ArenaBytes int64
	// Slots bounds the number of objects, 64 bytes of directory each, and
	// 8 bytes of ledger for each reader. Default one per KiB of arena, and at
	// least 64.
	Slots int
	// MaxObjectBytes is the size of the largest object, and what an eviction
	// aims to free. Default a quarter of the arena.
	MaxObjectBytes int64
	// MaxReaders bounds the readers besides the local one. Default and bound
	// 63.
	MaxReaders int
	// Memory is where the store lives. Default Auto.
	Memory Memory
	// StrictFIFO makes the room of an object that is still held block the
	// room behind it, as in a plain ring.
	StrictFIFO bool
	// Serializer encodes the values of [Store.PutValue]. Default msgpack.
	Serializer codec.Serializer
}

func (o Options) withDefaults() Options {
	if o.ArenaBytes == 0 {
		o.ArenaBytes = defaultArenaBytes
	}
	if o.Slots == 0 {
		o.Slots = int(max(min(o.ArenaBytes/bytesPerSlot, maxSlots), defaultMinSlots))
	}
	if o.MaxObjectBytes == 0 {
		o.MaxObjectBytes = o.ArenaBytes / objectsPerArena
	}
	if o.MaxReaders == 0 {
		o.MaxReaders = MaxReaders
	}
	if o.Memory == Auto {
		o.Memory = Heap
		if runtime.GOOS == "linux" {
			o.Memory = Shared
		}
	}
	if o.Serializer == nil {
		o.Serializer = codec.MsgpackSerializer{}
	}
	return o
}

// Validate reports the first option that [Create] would refuse. It looks at
// the options as they are after defaults were filled in.
func (o Options) Validate() error {
	o = o.withDefaults()
	switch {
	case o.ArenaBytes < minArenaBytes || o.ArenaBytes > maxArenaBytes:
		return fmt.Errorf("%w: ArenaBytes %d is not in [%d, %d]", ErrOptions, o.ArenaBytes, int64(minArenaBytes), int64(maxArenaBytes))
	case o.Slots < 1 || o.Slots > maxSlots:
		return fmt.Errorf("%w: Slots %d is not in [1, %d]", ErrOptions, o.Slots, maxSlots)
	case o.MaxObjectBytes < 1 || o.MaxObjectBytes > o.ArenaBytes:
		return fmt.Errorf("%w: MaxObjectBytes %d is not in [1, ArenaBytes %d]", ErrOptions, o.MaxObjectBytes, o.ArenaBytes)
	case o.MaxReaders < 1 || o.MaxReaders > MaxReaders:
		return fmt.Errorf("%w: MaxReaders %d is not in [1, %d]", ErrOptions, o.MaxReaders, MaxReaders)
	case o.Memory < Auto || o.Memory > Heap:
		return fmt.Errorf("%w: unknown memory %v", ErrOptions, o.Memory)
	}
	return nil
}
