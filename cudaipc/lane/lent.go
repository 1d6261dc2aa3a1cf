package lane

import (
	"sync"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// lent are the allocations of this process that were sent as they are, by any of its
// lanes. Receivers in this process need their addresses: a driver does not open a
// handle where it was made.
var lent = struct {
	mu      sync.Mutex
	buffers map[cudaipc.Handle]*lentBuffer
}{buffers: make(map[cudaipc.Handle]*lentBuffer)}

type lentBuffer struct {
	base     cudaipc.Ptr
	messages int
}

// lend notes the allocations of a message, until release is called.
func lend(o *Outgoing) (release func()) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		if p.Place == 0 {
			continue
		}
		place := &o.plan.Places[p.Place-1]
		at := lent.buffers[place.Handle]
		if at == nil {
			at = &lentBuffer{base: t.from.Ptr - cudaipc.Ptr(place.Offset)}
			lent.buffers[place.Handle] = at
		}
		at.messages++
	}
	return func() {
		takeBack(o.plan.Places)
		go o.freed() // freeing memory waits for streams; this is the store's writer
	}
}

func takeBack(places []bundle.Place) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	for i := range places {
		h := places[i].Handle
		if at := lent.buffers[h]; at != nil {
			if at.messages--; at.messages == 0 {
				delete(lent.buffers, h)
			}
		}
	}
}

// lentBase is where an allocation begins that was sent by its handle.
func lentBase(h cudaipc.Handle) (cudaipc.Ptr, bool) {
	lent.mu.Lock()
	defer lent.mu.Unlock()
	at := lent.buffers[h]
	if at == nil {
		return 0, false
	}
	return at.base, true
}
