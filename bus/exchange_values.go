package bus

import (
	"fmt"
	"math"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/ledger"
)

// fetched is a value of the exchange that the other process has.
type fetched struct {
	hold ledger.Hold // of it, in the account
	got  ring.Taken
	copy *ledger.Payload // which the other process reads instead, when the value is on the heap
}

// newFetched makes a value that was got one to be held.
func newFetched(got ring.Taken) *fetched {
	f := &fetched{got: got}
	f.hold = ledger.Hold{Value: f, At: time.Now(), Bytes: len(got.Bytes())}
	return f
}

// GiveBack implements ledger.Value.
func (f *fetched) GiveBack() { f.settle(f.got.Release) }

// settle ends the hold of a value.
func (f *fetched) settle(end func()) {
	f.copy.Release()
	end()
}

// unbounded is how many owners of values the host's process may have.
const unbounded = math.MaxInt

// owner finds an owner of values that a process has placed. One that is not there create makes,
// unless there are most already.
func owner(of *ledger.Account, number uint32, most int, create func() *ring.Owner) (*ring.Owner, error) {
	o, has := of.Owner(number, most, func() ledger.Owner { return create() }).(*ring.Owner)
	if !has {
		return nil, fmt.Errorf("%w: %d owners of this client have not cleaned up everything, more may not be", connector.ErrFull, most)
	}
	return o, nil
}

// cleans finds an owner that cleans up; nil: it has nothing. It is forgotten if that is its
// end.
func cleans(of *ledger.Account, number uint32, over bool) *ring.Owner {
	o, _ := of.Cleans(number, over).(*ring.Owner)
	return o
}

// values lists what a process has placed in the exchange, and has got from it.
func (h Holding) values(of *ledger.Account, placed string) (all []Holding) {
	of.Each(func(hold *ledger.Hold) {
		if f, is := hold.Value.(*fetched); is && hold.Why() == ledger.Fetched { // what is left is listed together
			e := f.got.Entry()
			e.Age = time.Since(hold.At)
			all = append(all, h.keyed(e, "fetched"))
		}
	})
	for _, o := range of.Owners() {
		for _, e := range o.(*ring.Owner).Entries() { //nolint:forcetypeassert // an account has no others
			all = append(all, h.keyed(e, placed))
		}
	}
	return all
}

// keyed is one value of a process, or of none.
func (h Holding) keyed(e ring.Entry, how string) Holding {
	h.Edge, h.Key, h.Exchange, h.Bytes, h.Age = e.Edge.From+"->"+e.Edge.To, e.Key, how, e.Bytes, e.Age
	return h
}
