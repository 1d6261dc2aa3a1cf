// Package posix keeps the values of connectors in a store that other processes open
// by its name: files in /dev/shm, which is where POSIX shared memory lies on Linux. It
// is for processes that are attached to no host, and can be handed no descriptors. It
// works on Linux alone; elsewhere New fails with connector.ErrUnavailable.
//
// One process puts: the first Put of an [End] creates the store, which is gone with
// its Close. Others get: the first Get or Await of an End opens the store, and takes one
// of the places for readers that its creator made. An End that has created a store also
// gets from it. Room, eviction and what holds a value are those of packages shmstore and
// connector/ring; this package adds names.
//
// # The files
//
// All begin with omnibus-UID-NAME, have mode 0600 and one writing process each:
//
//	file        written by                    what it has
//	(no more)   the creator                   who made it, how many places; locks; a bell
//	.arena      the creator                   payloads: see shmstore/layout.go
//	.directory  the creator                   a line for each payload: as well
//	.index      the creator                   which slots may have a key
//	.ledger-N   whoever has place N           its pins: see shmstore/layout.go
//	.marks-N    whoever has place N           what it got, whether it waits, who it is
//	.room       any reader                    a bell: there may be room
//
// The numbers of places begin with 1. A place is a reader's as long as that lives, and
// the creator's while nobody has it. A payload is the value, and behind it edge and
// key, so that the index need not be believed: a reader pins what a cell of the index
// names, and then compares.
//
// # Locks
//
// Locks on bytes of the first file say who lives. They belong to an open file
// description (F_OFD_SETLK), so the kernel gives them up when that process is dead, in
// whatever PID namespace it was, and with it all that it has forked without exec.
//
//	byte      held by
//	0         the creator, as long as the store is there
//	N         the reader in place N, as long as it has it
//	4096 + S  whoever takes the value in slot S, for that moment
//
// # Who gets a value
//
//	reader                                 creator
//	------                                 -------
//	find the slot in the index             put: write, commit, then the cell
//	pin it, compare edge and key
//	lock the slot
//	is it in the index still,
//	    and marked by nobody? mark it      later, some with each put, and all
//	unlock                                 for want of room or each second:
//	... read, unpin                            what is marked leaves the index,
//	                                           and goes when it has no pin
//
// The mark is the moment at which a value is got. A reader that is killed before it has
// got nothing, and one that is killed after it takes the value along. A mark has the
// value's generation, which is used once, so it is believed whoever has the place.
//
// # Death
//
// Of a reader, the pins are left. They go when another takes its place, which
// forgets them first, or when the creator finds the place free and does that: when
// it has no room, with Cleanup, and each second while there are values or readers.
//
// Of a creator, the files are left. Whoever creates a store of that name next takes the
// dead one's lock, removes them, the first file last, and then makes its own; nothing
// that a living process has, or another user, is touched. Readers keep what they hold,
// find nothing more, and open the next store by themselves.
//
// # Other languages
//
// The client in clients/python has both ends of a store, with the same files; the bytes
// of both are those of testdata/vectors.json, here and in package shmstore. It has no
// atomics. So it may change a word in steps, the last of which is one byte, the lowest:
// until then a directory word says free, and a cell of the index names another value or
// a slot that there is not. Whoever reads that looks further, or looks again, as he does
// for what goes while he looks.
//
// # Trust
//
// Files with names cannot be sealed. All processes of the user can open, overwrite and
// shorten them: one that does may have the others read what was never put, or end them
// with SIGBUS. What is no regular file of this user with mode 0600 is refused; sizes,
// superblocks and pages are checked before anything is mapped, read-only where somebody
// else writes; memory is allocated beforehand, so that a full /dev/shm is
// connector.ErrFull and no fault; and a reader believes no handle further than package
// shmstore does. Where that is not enough, attach to a host.
package posix
