package accounts

import (
	"maps"
	"slices"
)

// Owner has values in the exchange.
type Owner interface {
	// Close takes back all of its values that were not fetched. It returns how many.
	Close() int
}

// Owner finds an owner of values that the other process has placed. One that is not there create
// makes; nil: there are most already.
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

// CleanupOwner finds an owner that cleans up; nil: it has nothing. It is forgotten if that is its
// end.
func (a *Account) CleanupOwner(number uint32, final bool) Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.owners[number]
	if final {
		delete(a.owners, number)
	}
	return o
}

// Owners is a snapshot of them.
func (a *Account) Owners() []Owner {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Collect(maps.Values(a.owners))
}
