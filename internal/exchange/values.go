package exchange

import (
	"fmt"
	"math"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
)

// Fetched is a value that another process has fetched, or will be sent.
type Fetched struct {
	Hold accounts.Hold // for the process's account
	got  ring.Taken
	copy *accounts.Payload // a copy in shared memory of a value on the heap; nil: none
}

// newFetched makes a Fetched of a taken value.
func newFetched(got ring.Taken) *Fetched {
	f := &Fetched{got: got}
	f.Hold = accounts.Hold{Value: f, At: time.Now(), Bytes: len(got.Bytes())}
	return f
}

// Bytes is the value.
func (f *Fetched) Bytes() []byte { return f.got.Bytes() }

// InMemory is the value in memory that other processes can read. A value on the heap is copied.
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

// PutBack ends the hold of a value that was not read: the value is under its key again.
func (f *Fetched) PutBack() { f.release(f.got.PutBack) }

// release ends the hold of a value: it calls end, and releases the copy.
func (f *Fetched) release(end func()) {
	f.copy.Release()
	end()
}

// unbounded is the bound of the owners of the host's process.
const unbounded = math.MaxInt

// owner finds an owner of values of a process, or creates it. The error is connector.ErrFull if
// there are most owners already.
func owner(of *accounts.Account, number uint32, most int, create func() *ring.Owner) (*ring.Owner, error) {
	o, has := of.Owner(number, most, func() accounts.Owner { return create() }).(*ring.Owner)
	if !has {
		return nil, fmt.Errorf("%w: %d owners of this client have not cleaned up everything, more may not be", connector.ErrFull, most)
	}
	return o, nil
}

// cleanupOwner finds the owner of a cleanup; nil: there is none of this number. With final the
// account forgets the owner.
func cleanupOwner(of *accounts.Account, number uint32, final bool) *ring.Owner {
	o, _ := of.CleanupOwner(number, final).(*ring.Owner)
	return o
}

// Value is a value that a process has placed or fetched.
type Value struct {
	ring.Entry
	Got bool
}

// Values lists the values that a process has placed in the exchange, and has fetched from it.
func Values(of *accounts.Account) (all []Value) {
	of.Each(func(hold *accounts.Hold) {
		if f, is := hold.Value.(*Fetched); is && hold.State() == accounts.Fetched { // values in other states are not listed one by one
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
