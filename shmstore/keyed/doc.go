// Package keyed keeps values under keys in a store of package shmstore, which one process writes and many read:
// a cache that is filled once and read many times.
//
// The writer puts a value under a key, and sends the handle to the readers that it has admitted. A value whose
// key is there is not written again: GetCached gives its handle, and charges each reader once more.
//
//	err := store.Listen(path)                         // the writer
//	reader, err := keyed.Dial(path)                   // each reader's process
//
//	h, err := store.GetCached("image-5e1f")           // the writer
//	if errors.Is(err, keyed.ErrNotFound) {
//		h, err = store.Put("image-5e1f", pixels)
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
// So each handle must reach each reader. A handle that is lost on the way, with a request of a bus that ended before its
// reader had it, keeps its object until that reader is removed. A handle that was sent to a process that has died is not sent
// again to the next: that was not charged for it, and gets [shmstore.ErrNoDebt], or [shmstore.ErrStale].
//
// # Concurrency
//
// A [Store] is for any goroutine of its process. No lock is held while a value is encoded: until it is, its key is
// [ErrExists] to Put and [ErrNotFound] to GetCached. A [Reader] is for any
// goroutine. A [Value] belongs to one goroutine at a time. A call waits for no other process, but for Admit, Dial and Open.
//
// # Errors
//
// Test with errors.Is for those of this package, and for [shmstore.ErrTooLarge], [shmstore.ErrFull],
// [shmstore.ErrStale], [shmstore.ErrNoDebt] and [shmstore.ErrClosed]. After an error nothing was put or charged.
package keyed
