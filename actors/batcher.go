package actors

import (
	"fmt"
	"slices"
	"time"
)

// Batcher gathers messages of one actor into batches: of up to size, or of
// what arrived within wait of the first. It belongs to the actor's goroutine.
type Batcher[T any] struct {
	size int
	wait time.Duration
	run  func([]T)
	due  func(batch uint64)

	items  []T
	number uint64 // number of the batch being gathered
	timer  *time.Timer
}

// NewBatcher returns a batcher that hands full batches to run, whose they are
// from then on. When a batch has waited long enough, due is called, on any
// goroutine, and must have the actor call Due. With a wait of 0 that happens
// at once: the actor comes to it behind what its mailbox holds already. It
// panics if the size is not positive.
func NewBatcher[T any](size int, wait time.Duration, run func([]T), due func(batch uint64)) *Batcher[T] {
	if size < 1 {
		panic(fmt.Sprintf("actors: batches of %d: the size must be at least 1", size))
	}
	return &Batcher[T]{size: size, wait: wait, run: run, due: due}
}

// Add adds an item to the batch, and runs it when it is full.
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

// Take takes items out of the batch that is being gathered.
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

// flush forgets the batch before it runs it: a panic leaves nothing behind.
func (b *Batcher[T]) flush() {
	b.run(b.startBatch())
}

// startBatch begins a new batch.
func (b *Batcher[T]) startBatch() (items []T) {
	if b.timer != nil {
		b.timer.Stop()
		b.timer = nil
	}
	items, b.items = b.items, nil
	b.number++
	return items
}
