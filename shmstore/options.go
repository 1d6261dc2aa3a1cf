package shmstore

import (
	"fmt"
	"os"
	"runtime"

	"github.com/omnibus-runtime/omnibus/ringbuf"
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
	// ArenaBytes is the space for payloads, in bytes; each takes 16 bytes more
	// and starts on a cache line. Default 64 MiB. In Shared memory it is rounded up to
	// whole pages.
	ArenaBytes int64
	// Slots bounds the number of objects, 64 bytes of directory each, and
	// 8 bytes of ledger for each reader. Default one per KiB of arena, and at
	// least 64.
	Slots int
	// MaxObjectBytes is the size of the largest object. Default MaxLargeBytes,
	// or LargeObjectBytes if that is more.
	MaxObjectBytes int64
	// LargeObjectBytes is the size of the largest object in the arena, at most a cache
	// line less than the arena, and the number of bytes that an eviction aims to free.
	// Each object above it gets a segment of its own, and a cache line of the arena.
	// Default MaxObjectBytes, if that is set and not above the arena, and else a quarter
	// of the arena.
	LargeObjectBytes int64
	// MaxLargeBytes bounds the large objects together, in whole pages. Their
	// segments are made when they are needed, after a check of the free memory;
	// see Reuse for how much more they may take. Default as much as the
	// arena; if it is negative, there are no large objects.
	MaxLargeBytes int64
	// KeepLargeBytes bounds the segments that Reuse keeps, together with those of the
	// large objects: the segment of a large object that is gone is unmapped if they would
	// take more. Default MaxLargeBytes.
	KeepLargeBytes int64
	// MaxReaders bounds the readers besides the local one. Default and bound
	// 63.
	MaxReaders int
	// Memory is where the store lives. Default Auto.
	Memory Memory
	// Reuse is for stores whose objects no reader asks for once they are settled.
	// A settled object is then not kept until space runs out: one of the next
	// reservations evicts it, and its space, which is in the caches of processors, is used
	// again before any other: see [ringbuf.Options]. Shared memory is taken when space that
	// was never used is first granted, and not when the store is made. The segment of a
	// large object is kept for the next one that fits it, as long as there is space. It may
	// be larger than its object by up to a quarter, so that lengths that differ a little
	// fit.
	Reuse bool
}

// WithDefaults returns the options with all defaults filled in, as [Create] uses them.
func (o Options) WithDefaults() Options {
	if o.Memory == Auto {
		o.Memory = Heap
		if runtime.GOOS == "linux" {
			o.Memory = Shared
		}
	}
	switch page := int64(os.Getpagesize()); {
	case o.ArenaBytes == 0:
		o.ArenaBytes = defaultArenaBytes
	case o.Memory == Shared && o.ArenaBytes >= minArenaBytes && o.ArenaBytes <= maxArenaBytes:
		o.ArenaBytes = (o.ArenaBytes + page - 1) / page * page // GPUs refuse what does not end with a page
	}
	if o.Slots == 0 {
		o.Slots = int(max(min(o.ArenaBytes/bytesPerSlot, maxSlots), defaultMinSlots))
	}
	if o.MaxLargeBytes == 0 {
		o.MaxLargeBytes = o.ArenaBytes
	}
	if o.KeepLargeBytes == 0 {
		o.KeepLargeBytes = o.MaxLargeBytes
	}
	if o.LargeObjectBytes == 0 {
		o.LargeObjectBytes = o.ArenaBytes / objectsPerArena
		if o.MaxObjectBytes > 0 && o.MaxObjectBytes <= o.ArenaBytes {
			o.LargeObjectBytes = o.MaxObjectBytes
		}
	}
	if o.MaxObjectBytes == 0 {
		o.MaxObjectBytes = o.largest()
	}
	if o.MaxReaders == 0 {
		o.MaxReaders = MaxReaders
	}
	return o
}

// inArena is the size of the largest object in the arena, which has a header and is
// aligned.
func (o Options) inArena() int64 {
	return min(o.LargeObjectBytes, o.ArenaBytes-ringbuf.DefaultAlign)
}

// largest is the size of the largest object that fits anywhere.
func (o Options) largest() int64 { return max(o.inArena(), o.MaxLargeBytes/pageBytes*pageBytes) }

// Validate reports the first option that [Create] would refuse. It checks
// the options with all defaults filled in.
func (o Options) Validate() error {
	o = o.WithDefaults()
	switch {
	case o.ArenaBytes < minArenaBytes || o.ArenaBytes > maxArenaBytes:
		return fmt.Errorf("%w: ArenaBytes %d is not in [%d, %d]", ErrOptions, o.ArenaBytes, int64(minArenaBytes), int64(maxArenaBytes))
	case o.Slots < 1 || o.Slots > maxSlots:
		return fmt.Errorf("%w: Slots %d is not in [1, %d]", ErrOptions, o.Slots, maxSlots)
	case o.LargeObjectBytes < 1 || o.LargeObjectBytes > o.ArenaBytes:
		return fmt.Errorf("%w: LargeObjectBytes %d is not in [1, ArenaBytes %d]", ErrOptions, o.LargeObjectBytes, o.ArenaBytes)
	case o.MaxLargeBytes > maxArenaBytes:
		return fmt.Errorf("%w: MaxLargeBytes %d is above %d", ErrOptions, o.MaxLargeBytes, int64(maxArenaBytes))
	case o.MaxObjectBytes < 1 || o.MaxObjectBytes > o.largest():
		return fmt.Errorf("%w: MaxObjectBytes %d is not in [1, %d], as ArenaBytes %d, LargeObjectBytes %d and MaxLargeBytes %d allow",
			ErrOptions, o.MaxObjectBytes, o.largest(), o.ArenaBytes, o.LargeObjectBytes, o.MaxLargeBytes)
	case o.MaxReaders < 1 || o.MaxReaders > MaxReaders:
		return fmt.Errorf("%w: MaxReaders %d is not in [1, %d]", ErrOptions, o.MaxReaders, MaxReaders)
	case o.Memory < Auto || o.Memory > Heap:
		return fmt.Errorf("%w: unknown memory %v", ErrOptions, o.Memory)
	}
	return nil
}
