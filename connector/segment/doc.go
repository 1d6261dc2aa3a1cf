// Package segment hands values over as vLLM-Omni's SharedMemoryConnector does on one
// host, byte for byte, so that either side of an edge may be that: a value is a POSIX
// shared memory segment, which on Linux is a file in /dev/shm. It works on Linux alone;
// elsewhere New fails with connector.ErrUnavailable.
//
// # The format
//
// There are two generations of it. One is chosen for what is put; what is got may be
// of either.
//
//	generation 2, vLLM-Omni from 0.14 on: by key
//	    metadata      {"inline_bytes": value, "size": n} up to InlineBytes, else
//	                  {"shm": {"name": KEY, "size": n}, "size": n}, or none at all
//	    segment       /dev/shm/KEY, mode 0600, of exactly n bytes
//	    lock          /dev/shm/shm_KEY_lockfile.lock, under flock while a segment is
//	                  written, read or removed
//
//	generation 1, before that: by metadata
//	    metadata      {"inline_bytes": value, "size": n} up to InlineBytes, else
//	                  {"shm": {"name": NAME, "size": n}, "size": n}
//	    segment       /dev/shm/NAME, where NAME is psm_ and 8 digits; there is no lock
//
// Whoever gets a value removes the segment and then the lock. A key that is in use is
// replaced. Metadata of other connectors are ignored, and the value is looked for by its
// key. Without metadata the size is the segment's; there is one only if it has a
// lock, because its writer may still be at work otherwise. A segment of no bytes cannot
// be told from one that was just begun, so a value of no bytes goes in its metadata.
//
// Keys alone say where a value lies: two edges that use one key share it, and so do
// all programs of one user. Keys that would name something else in that directory (a
// lock, a semaphore, a hidden file) are refused.
//
// # How it is written
//
//	a file that nobody has, or a new one -> memory looked at, filled
//	    -> lock -> journal -> linked under its name -> unlocked
//
// A segment has its name only when it is whole, so nobody ever sees half of one. One of
// up to 64 MiB is encoded into private memory and written with pwrite, which is cheaper
// than to map it; a larger one is encoded in place, once its memory is allocated. So no
// access can fault, and what has no room is connector.ErrFull. A lock that a living
// process keeps is waited for until the context ends or the timeout has passed, and then
// it is connector.ErrBusy; the kernel takes the locks of the dead away. Get waits for a
// lock, and never for a value; Await is told by inotify.
//
// What is dear about a new file is its memory, so files are used again. One of up to 64 MiB
// has a second name, among the journals, before it has its first, and its writer keeps it
// open. It stays, with its memory, when whoever gets the value removes the first name, and
// that may be vLLM-Omni, which knows nothing of this. The file is free once the second name is
// its only one, and the kernel grants a lease on it, which it does to nobody while
// others have the file open or mapped. Each put looks at two. A transport has at
// most 32 such files and 64 MiB in them, or an eighth of the file system if that is less; makes
// new ones only while half of that is free; lets go of all before anything finds no room, or no
// descriptor; and of what was not used for five seconds.
//
// # How it is read
//
// With pread, into private memory, which is used again after Release: a segment that
// somebody cuts short is connector.ErrCorrupt, and so is one whose size is not what the
// metadata say, or which has pages that nobody ever wrote, as a writer leaves it that
// was killed at work. What is no regular file of this user is connector.ErrKey, and
// stays.
//
// # What is left, and who removes it
//
// What was put and not got goes with Cleanup, Close, or its TTL. Before anything has a
// name, a journal has it: a file in /dev/shm/.omnibus-UID, locked while its transport is
// open, with a row for each value that was put and each lock that is being removed. Rows
// have the inode and the birth of what they are about, so that nothing else of that name
// is ever taken for it. Whoever opens a transport sweeps the journals that nobody has
// locked: the kernel gives a lock up when its process dies, in whatever PID namespace
// that was, and a restart of the machine clears journals and segments alike. What a
// living process has locked at that moment is left for the next.
//
// What is put to last has a note in a file of its own beside the journals: its key,
// and until when it may lie. A transport that is opened or closed removes what is
// past its time, and the notes of what is gone. A second name goes with its transport, or
// when somebody opens one and there is no journal of that any more.
//
// # Living with vLLM-Omni
//
// Python's resource tracker, a helper process, removes all segments that a Python
// process has made or opened and not removed itself, when that process ends in whatever
// way: also ones that somebody else made. So a Python producer that ends takes its
// values along, and leaves their locks; and one of ours is gone when a Python process
// ends that had opened it and not taken it, as a Get does that finds the lock taken.
// Here that is connector.ErrNotFound. Versions 0.16 and 0.18 never remove the lock of a
// value that is false in Python: a later Put removes what is left of such locks, and so
// does Cleanup.
//
// A consumer there unlocks the lock file before it removes it. If the key is put again
// in between, the new segment has no lock any more: it is got with its metadata, but by
// its key alone nobody finds it, there or here. Their own producers have the same.
//
// # Concurrency
//
// All methods may be called from any goroutine.
package segment
