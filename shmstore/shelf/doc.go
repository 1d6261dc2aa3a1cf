// Package shelf is a table of values in shared memory, which one process puts
// there and others take, each value once. Nobody is asked for it.
//
// # Use
//
// The process that puts owns the shelf. Which numbers its values have is somebody
// else's to say, who hands the descriptor on, too: the host of a bus.
//
//	s, err := shelf.New()
//	...                                     // s.FD() goes to the host, first comes from there
//	s.Begin(first)
//	number, ok := s.Put(shelf.Value{Offset: at, Size: n, Tag: tag})
//	...                                     // the host is told, and whoever is to take it
//	s.Clear(number)                         // nobody has it any more
//
// Whoever takes has a [Taker], on an open file description of its own, which
// [Describe] makes:
//
//	t, err := shelf.Open(fd, first)
//	v, ok := t.Take(number, tag)
//
// # The claim
//
// A lock is the claim: the kernel's exclusive lock on the byte of the shelf's file
// that has the value's number. No word of memory is written by two.
//
// Who has the lock looks whether the value is there still. If it is, it is theirs, until
// they say otherwise to whoever keeps account; the owner does not clear it before. A lock
// is kept, beyond the end of the reading, until the slot is seen to hold another
// number or none: nobody can take the value again in between. Numbers never repeat, so
// that a lock that is kept for too long is in nobody's way.
//
// Who has read a value makes the lock a shared one ([Taker.Give]), and says so to whoever
// keeps account when it likes. By that the owner sees that it can use the memory again
// ([Shelf.Reclaim]), and waits for nobody.
//
// # Keeping account
//
// Somebody has to know who has what, and to tell the owner what it gets back: the host.
// It claims with a Taker of its own ([Taker.Claim]) what it is to give to somebody, or to
// take back.
//
// A lock belongs to an open file description. The host makes one for each taker, and keeps a
// duplicate, its [Witness]: so what a dead process had stays locked until the host has seen to
// it, and the host can ask whether anybody but that taker has a value. Before it gives a
// value back that was read, it takes the lock over: [Witness.Share], then [Taker.Share]. So
// there is no moment in which somebody else could take what is over.
//
// # Trust
//
// The memory is sealed: nobody but the owner can write to it, and whoever reads it
// needs not be afraid of its end. Where a value lies is the owner's word. It is for
// the caller to compare with memory that it has mapped. Whoever has a descriptor
// can take, or lock and not take, what lies there: it is for processes that could get
// the values anyway.
//
// # Concurrency
//
// All methods may be called from any goroutine. Linux only; elsewhere New is
// [shmstore.ErrUnsupported].
package shelf
