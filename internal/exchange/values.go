package exchange

import (
	"fmt"
	"math"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
)

// Fetched is a value that another process has got, or is to be given.
type Fetched struct {
	Hold accounts.Hold // for the process's account
	got  ring.Taken
	copy *accounts.Payload // which the other process reads instead, when the value is on the heap
}

// newFetched makes a value that was got one to be held.
func newFetched(got ring.Taken) *Fetched {
	f := &Fetched{got: got}
	f.Hold = accounts.Hold{Value: f, At: time.Now(), Bytes: len(got.Bytes())}
	return f
}

// Bytes is the value.
func (f *Fetched) Bytes() []byte { return f.got.Bytes() }

// InMemory is the value where another process can read it: one on the heap is copied for that.
func (f *Fetched) InMemory() (*accounts.Payload, error) {
	p := f.got.Payload.(*accounts.Payload) //nolint:forcetypeassert // the table has no others
	if p.InMemory() {
		return p, nil
	}
	var err error
	f.copy, err = accounts.Copied(p.Bytes())
	return f.copy, err
}

// GiveBack implements accounts.Value.
func (f *Fetched) GiveBack() { f.release(f.got.Release) }

// PutBack ends the hold of a value that was not read: it lies under its key again.
func (f *Fetched) PutBack() { f.release(f.got.PutBack) }

// release ends the hold of a value.
func (f *Fetched) release(end func()) {
	f.copy.Release()
	end()
}

// unbounded is how many owners of values the host's process may have.
const unbounded = math.MaxInt

// owner finds an owner of values that a process has placed. One that is not there create makes,
// unless there are most already.
func owner(of *accounts.Account, number uint32, most int, create func() *ring.Owner) (*ring.Owner, error) {
	o, has := of.Owner(number, most, func() accounts.Owner { return create() }).(*ring.Owner)
	if !has {
		return nil, fmt.Errorf("%w: %d owners of this client have not cleaned up everything, more may not be", connector.ErrFull, most)
	}
	return o, nil
}

// cleanupOwner finds an owner that cleans up; nil: it has nothing. It is forgotten if that is its
// end.
func cleanupOwner(of *accounts.Account, number uint32, final bool) *ring.Owner {
	o, _ := of.CleanupOwner(number, final).(*ring.Owner)
	return o
}

// Value is a value that a process has placed or got.
type Value struct {
	ring.Entry
	Got bool
}

// Values lists what a process has placed in the exchange, and has got from it.
func Values(of *accounts.Account) (all []Value) {
	of.Each(func(hold *accounts.Hold) {
		if f, is := hold.Value.(*Fetched); is && hold.State() == accounts.Fetched { // what is left is listed together
			e := f.got.Entry()
			e.Age = time.Since(hold.At)
			all = append(all, Value{Entry: e, Got: true})
		}
	})
	for _, o := range of.Owners() {
		for _, e := range o.(*ring.Owner).Entries() { //nolint:forcetypeassert // an account has no others
			all = append(all, Value{Entry: e})
		}
	}
	return all
}
