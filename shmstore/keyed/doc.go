// Package keyed keeps values under keys in a store of package shmstore, which one process writes and many read:
// a cache that is filled once and read many times.
//
// The writer puts a value under a key, and sends the handle to the readers that it has admitted. A value whose
// key exists is not written again: GetCached returns its handle, and charges each reader once more.
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
// # Charges and eviction
//
// Each Put, GetCached and Touch charges every admitted reader: the reader gets the value, or drops the handle,
// exactly once for each charge. An object that no reader owes for, or reads, stays until its space is needed. Then such
// objects are evicted, the oldest first, so the value of a key may be gone. A reader whose process dies, or that is
// closed or removed, owes nothing. If the owner dies, a reader keeps the values that it has got, and gets no more:
// [ErrOwnerGone].
//
// Each handle must reach each reader. A lost handle, for example one in a request of a bus that ended before its
// reader received it, keeps its object until that reader is removed. Do not send the handle that was sent to a process
// that has died to the next process: that reader was not charged, and gets [shmstore.ErrNoDebt], or [shmstore.ErrStale].
//
// # Concurrency
//
// A [Store] is for any goroutine of its process. No lock is held while a value is encoded: until it is encoded, Put of
// its key returns [ErrExists] and GetCached [ErrNotFound]. A [Reader] is for any
// goroutine. A [Value] belongs to one goroutine at a time. Only Admit, Dial and Open wait for another process.
//
// # Errors
//
// Test with errors.Is for those of this package, and for [shmstore.ErrTooLarge], [shmstore.ErrFull],
// [shmstore.ErrStale], [shmstore.ErrNoDebt] and [shmstore.ErrClosed]. After an error nothing was put or charged.
package keyed
