package lane

import (
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// lent is an allocation of this process that was sent as it is. Receivers in this
// process need its address: a driver does not open a handle where it was made.
type lent struct {
	base     cudaipc.Ptr
	messages int
}

// lend notes the allocations of a message, until release is called.
func (l *Lane) lend(o *Outgoing) (release func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range o.tensors {
		p := &o.plan.Tensors[t.number]
		if p.Place == 0 {
			continue
		}
		place := &o.plan.Places[p.Place-1]
		at := l.lent[place.Handle]
		if at == nil {
			at = &lent{base: t.from.Ptr - cudaipc.Ptr(place.Offset)}
			l.lent[place.Handle] = at
		}
		at.messages++
	}
	return func() {
		l.takeBack(o.plan.Places)
		go o.freed() // freeing memory waits for streams; this is the store's writer
	}
}

func (l *Lane) takeBack(places []bundle.Place) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range places {
		h := places[i].Handle
		if at := l.lent[h]; at != nil {
			if at.messages--; at.messages == 0 {
				delete(l.lent, h)
			}
		}
	}
}

func (l *Lane) lentBase(h cudaipc.Handle) (cudaipc.Ptr, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.lent[h]
	if at == nil {
		return 0, false
	}
	return at.base, true
}
