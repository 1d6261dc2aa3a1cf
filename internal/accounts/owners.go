package accounts

import (
	"maps"
	"slices"
)

// Owner is an owner of values in the exchange.
type Owner interface {
	// Close takes back the owner's values that were not fetched. It returns how many.
	Close() int
}

// Owner finds an owner of values of the other process, or creates it; nil: there are most owners
// already.
func (a *Account) Owner(number uint32, most int, create func() Owner) Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.owners[number] == nil {
		if len(a.owners) >= most {
			return nil
		}
		a.owners[number] = create()
	}
	return a.owners[number]
}

// CleanupOwner finds the owner of a cleanup; nil: there is none of this number. With final the
// account forgets the owner.
func (a *Account) CleanupOwner(number uint32, final bool) Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.owners[number]
	if final {
		delete(a.owners, number)
	}
	return o
}

// Owners is a snapshot of the owners.
func (a *Account) Owners() []Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.owners))
}
