// Package keyed keeps values under keys in a store of package shmstore, which one process writes and many read:
// a cache that is filled once and read many times.
//
// The writer puts a value under a key, and sends the handle to the readers that it has admitted. A value whose
// key is there is not written again: GetCached gives its handle, and charges each reader once more.
//
//	err := store.Listen(path)                         // the writer
//	reader, err := keyed.Dial(path)                   // each reader's process
//
//	h, err := store.Put("image-5e1f", pixels)         // the writer
//	if errors.Is(err, keyed.ErrExists) {
//		h, err = store.GetCached("image-5e1f")
//	}
//	v, err := reader.Get(h)                           // in each reader's process
//	defer v.Release()
//
// # What stays, and what goes
//
// Each Put, GetCached and Touch charges every reader that is admitted: it gets the value, or drops the handle,
// exactly once for each charge. An object that no reader owes for, or reads, stays until its room is needed, and
// goes then, the oldest first. So a key that was there may be gone. A reader whose process dies, or that is closed or
// removed, owes nothing. A reader whose owner dies keeps what it has got, and gets no more: [ErrOwnerGone].
//
// # Concurrency
//
// A [Store] is for any goroutine of its process. No lock is held while a value is encoded. A [Reader] is for any
// goroutine. A [Value] belongs to one goroutine at a time. A call waits for no other process, but for Admit, Dial and Open.
//
// # Errors
//
// Test with errors.Is for those of this package, and for [shmstore.ErrTooLarge], [shmstore.ErrFull],
// [shmstore.ErrStale] and [shmstore.ErrClosed]. After an error nothing was put or charged.
package keyed
