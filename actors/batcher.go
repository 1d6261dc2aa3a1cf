package actors

import (
	"fmt"
	"slices"
	"time"
)

// Batcher gathers messages of one actor into batches of up to size messages; a
// batch is also due when its first message has waited for the time wait. It
// belongs to the actor's goroutine.
type Batcher[T any] struct {
	size int
	wait time.Duration
	run  func([]T)
	due  func(batch uint64)

	items  []T
	number uint64 // number of the batch being gathered
	timer  *time.Timer
}

// NewBatcher returns a batcher that hands full batches to run, which owns the
// slice from then on. When a batch has waited long enough, due is called, on
// any goroutine, and must have the actor call Due. With a wait of 0, due is
// called at once: the actor then calls Due behind the messages that its mailbox
// already holds. NewBatcher panics if the size is not positive.
func NewBatcher[T any](size int, wait time.Duration, run func([]T), due func(batch uint64)) *Batcher[T] {
	if size < 1 {
		panic(fmt.Sprintf("actors: batches of %d: the size must be at least 1", size))
	}
	return &Batcher[T]{size: size, wait: wait, run: run, due: due}
}

// Add adds an item to the batch, and runs the batch when it is full.
func (b *Batcher[T]) Add(item T) {
	b.items = append(b.items, item)
	switch {
	case len(b.items) == b.size:
		b.flush()
	case len(b.items) > 1:
	case b.wait <= 0:
		b.due(b.number)
	default:
		n := b.number
		b.timer = time.AfterFunc(b.wait, func() { b.due(n) })
	}
}

// Due runs the batch of that number, unless it ran already.
func (b *Batcher[T]) Due(batch uint64) {
	if batch == b.number && len(b.items) > 0 {
		b.flush()
	}
}

// Take removes the items that which selects from the batch being gathered, and
// returns them.
func (b *Batcher[T]) Take(which func(T) bool) (taken []T) {
	b.items = slices.DeleteFunc(b.items, func(item T) bool {
		mine := which(item)
		if mine {
			taken = append(taken, item)
		}
		return mine
	})
	if len(taken) > 0 && len(b.items) == 0 {
		b.startBatch()
	}
	return taken
}

// flush starts a new batch before it runs the old one: a batch that panics is
// not run again.
func (b *Batcher[T]) flush() {
	b.run(b.startBatch())
}

// startBatch starts a new batch and returns the items of the old one.
func (b *Batcher[T]) startBatch() (items []T) {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	items, b.items = b.items, nil
	b.number++
	return items
}
