package bus

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
)

// fetched is a value of the exchange that the other process has.
type fetched struct {
	hold hold // of it, in the account
	got  ring.Taken
	copy *foreign // which the other process reads instead, when the value is on the heap
}

// newFetched makes a value that was got one to be held.
func newFetched(got ring.Taken) *fetched {
	f := &fetched{hold: hold{why: whyFetched, at: time.Now(), bytes: len(got.Bytes())}, got: got}
	f.hold.value = f
	return f
}

// settle ends the hold of a value.
func (f *fetched) settle(end func()) {
	f.copy.giveUp()
	end()
}

// unbounded is how many owners of values the host's process may have.
const unbounded = math.MaxInt

// owner finds an owner of values that the other process has placed. One that is not there create
// makes, unless there are most already.
func (a *account) owner(number uint32, most int, create func() *ring.Owner) (*ring.Owner, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owners[number] == nil {
		if len(a.owners) >= most {
			return nil, fmt.Errorf("%w: %d owners of this client have not cleaned up everything, more may not be", connector.ErrFull, most)
		}
		a.owners[number] = create()
	}
	return a.owners[number], nil
}

// cleans finds an owner that cleans up; nil: it has nothing. It is forgotten if that is its
// end.
func (a *account) cleans(number uint32, over bool) *ring.Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.owners[number]
	if over {
		delete(a.owners, number)
	}
	return o
}

// values lists what the other process has placed in the exchange, and has got from it.
func (a *account) values(who Holding, placed string) (all []Holding) {
	a.mu.Lock()
	owners := slices.Collect(maps.Values(a.owners))
	for _, h := range a.holds {
		if h.why == whyFetched { // what is left is listed together
			e := h.value.got.Entry()
			e.Age = time.Since(h.at)
			all = append(all, who.keyed(e, "fetched"))
		}
	}
	a.mu.Unlock()
	for _, o := range owners {
		for _, e := range o.Entries() {
			all = append(all, who.keyed(e, placed))
		}
	}
	return all
}

// keyed is one value of a process, or of none.
func (h Holding) keyed(e ring.Entry, how string) Holding {
	h.Edge, h.Key, h.Exchange, h.Bytes, h.Age = e.Edge.From+"->"+e.Edge.To, e.Key, how, e.Bytes, e.Age
	return h
}
