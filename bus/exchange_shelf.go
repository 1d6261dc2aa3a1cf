package bus

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// hostShelf is where the host's process puts what nodes take without asking it. It is made
// when one of them has asked.
type hostShelf struct {
	mu    sync.Mutex
	own   *shelf.Shelf
	on    *ring.Shelf
	tried bool // it is there, or is not to be had
}

// make makes the shelf, if there is none.
func (h *hostShelf) make(table *ring.Table) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.tried {
		return
	}
	h.tried = true
	own, err := shelf.New()
	if err != nil {
		return // they go on asking
	}
	first := table.NewRange()
	fd, err := shelf.Describe(own.FD())
	if err != nil {
		own.Close()
		return
	}
	taker, err := shelf.Open(fd, first)
	if err != nil {
		own.Close()
		return
	}
	own.Begin(first)
	h.own, h.on = own, table.Shelf(first, taker)
}

// there reports whether values can lie on it.
func (h *hostShelf) there() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.on != nil
}

// reclaim gives room back of values that are read no more.
func (h *hostShelf) reclaim() {
	h.mu.Lock()
	on := h.on
	h.mu.Unlock()
	if on != nil {
		on.Reclaim()
	}
}

// put places a payload, on the shelf if it can lie there. It takes it over.
func (h *hostShelf) put(o *ring.Owner, edge connector.Edge, key string, p *foreign) (uint64, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on == nil || p.seg == nil || !p.seg.lasting.Load() {
		return o.Put(edge, key, keyed{p})
	}
	number, ok := h.own.Put(shelf.Value{Offset: uint64(p.offset), Size: uint64(len(p.data)), Tag: tagOf(edge, key)})
	if !ok {
		return o.Put(edge, key, keyed{p})
	}
	own, free := h.own, p.free
	p.free = func() {
		own.Clear(number) // before the room is used again
		free()
	}
	return number, o.PutOn(h.on, number, ring.Now(), edge, key, keyed{p})
}

// close ends it, when all that lay there is given back.
func (h *hostShelf) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.on != nil {
		h.on.Close()
		h.own.Close()
		h.on = nil
	}
}
