package shmstore_test

import (
	"errors"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// A producer puts one object for two readers. It stays until both have
// released it, and its space is used again when the store needs it.
func Example() {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()
	talker, err := store.DeclareReader("talker")
	if err != nil {
		fmt.Println(err)
		return
	}

	handle, err := store.Put([]byte("hidden states"), shmstore.Readers(store.Local().ID(), talker.ID()))
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, reader := range []*shmstore.Reader{store.Local(), talker} {
		lease, err := reader.Take(handle)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("reader %d reads %q\n", reader.ID(), lease.Bytes())
		lease.Release()
	}
	fmt.Println("freed", store.FreeUnused(), "bytes")
	_, err = talker.Pin(handle)
	fmt.Println("gone:", errors.Is(err, shmstore.ErrStale))
	// Output:
	// reader 0 reads "hidden states"
	// reader 1 reads "hidden states"
	// freed 13 bytes
	// gone: true
}

// A producer that computes its payload fills the store's memory itself.
func ExampleStore_Reserve() {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	reservation, err := store.Reserve(1024, codec.IDRaw, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	n := copy(reservation.Bytes(), "computed in place")
	handle, err := reservation.Commit(n, 1) // one delivery in this process
	if err != nil {
		fmt.Println(err)
		return
	}
	lease, err := store.Local().Take(handle)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer lease.Release()
	fmt.Printf("%s\n", lease.Bytes())
	// Output: computed in place
}
