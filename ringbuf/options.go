package ringbuf

import (
	"errors"
	"fmt"
)

const (
	// DefaultAlign is the payload alignment when Options.Align is zero: a
	// cache line, so that two payloads never share one.
	DefaultAlign = 64

	// MaxAlign is the largest payload alignment: a memory page.
	MaxAlign = 4096
)

// Options are the choices for a new ring. The zero value is ready to use.
type Options struct {
	// Align is the alignment of payload addresses in bytes, relative to the
	// start of the buffer: a power of two from 1 to MaxAlign. Zero means
	// DefaultAlign. With 1 chunks stand as close as they can.
	Align int

	// Reuse cuts chunks from the smallest gaps that are large enough, of
	// like-sized ones from the one freed last, in place of going round: memory that was
	// used just now, and is in the caches of processors, is used again.
	Reuse bool

	// Fill, if it is set, gives the buffer its memory. Allocate calls it before it cuts a
	// chunk that ends beyond all filled bytes, with that end. Fill returns how many bytes
	// from the buffer's start have memory now: if they are fewer, Allocate fails. Space that
	// was never used is behind all used space, so chunks that end before it need no
	// call. Fill needs Reuse: a ring that goes round uses all of its buffer in any case.
	Fill func(endBytes uint64) (filledBytes uint64)
}

func (o Options) withDefaults() Options {
	if o.Align == 0 {
		o.Align = DefaultAlign
	}
	return o
}

// Validate reports the first option that [New] would refuse.
func (o Options) Validate() error {
	a := o.withDefaults().Align
	if a < 1 || a > MaxAlign || a&(a-1) != 0 {
		return fmt.Errorf("option Align is %d, want a power of two from 1 to %d, or 0 for %d", a, MaxAlign, DefaultAlign)
	}
	if o.Fill != nil && !o.Reuse {
		return errors.New("option Fill needs Reuse")
	}
	return nil
}
