// Package segment hands values over as vLLM-Omni's SharedMemoryConnector does on one host, byte for
// byte, so that either side of an edge may be vLLM-Omni: a value is a POSIX shared memory segment,
// which on Linux is a file in /dev/shm. It works on Linux alone; elsewhere New fails with
// connector.ErrUnavailable.
//
// # The format
//
// There are two generations of the format. Options.Generation selects the one for puts; gets accept
// both.
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
// The reader of a value removes the segment and then the lock. A key that is in use is replaced.
// Metadata of other connectors are ignored, and the value is looked up by its key. Without metadata
// the size is the segment's; a segment without a lock is then not found, because its writer may
// still be writing. An empty segment looks like one that was just created, so an empty value goes
// into its metadata.
//
// The key alone is the address of a value: two edges that use one key share a value, and so do all
// programs of one user. Keys that would name another file in that directory (a lock, a semaphore, a
// hidden file) are refused.
//
// # Writing
//
//	a free spare, or a new file -> free memory checked, filled
//	    -> lock -> journal -> linked under its name -> unlocked
//
// A segment gets its name when it is complete, so no reader sees a part of one. A segment of up to
// 64 MiB is encoded into private memory and written with pwrite, which is cheaper than mapping it;
// a larger one is encoded in place, once its memory is allocated. So no access can fault, and a
// value without space is connector.ErrFull. A put or a get waits for a lock of a living process
// until the context ends or the timeout has passed, and then it is connector.ErrBusy; the kernel
// releases the locks of dead processes. Get waits for a lock, and never for a value; Await is
// notified by inotify.
//
// The memory of a new file is expensive, so files are reused (spares). A file of up to 64 MiB gets
// a second name, among the journals, before its first name, and its writer keeps it open. When the
// reader removes the first name, which may be vLLM-Omni, the file and its memory stay. The file is
// free once the second name is its only one and the kernel grants a lease on it, which the kernel
// refuses while other processes have the file open or mapped. Each put checks two spares. A
// transport has at most 32 spares with 64 MiB, or an eighth of the file system if that is less. It
// creates spares only while half of the file system is free, drops all of them before an operation
// fails for want of space or descriptors, and drops each one that was not used for five seconds.
//
// # Reading
//
// Segments are read with pread, into private memory, which is reused after Release. A segment that
// is cut short meanwhile is connector.ErrCorrupt, and so is one whose size differs from the
// metadata, or that has pages which were never written, as after the death of its writer. A file
// that is no regular file of this user is connector.ErrKey, and stays.
//
// # Removal of values
//
// A value that was put and not got is removed by Cleanup, Close, or its TTL. A journal records each
// value before it has a name: a file in /dev/shm/.omnibus-UID, locked while its transport is open,
// with a row for each value that was put and each lock that is being removed. A row contains the
// inode and the birth time of its files, so that no other file of the same name is taken for them.
// Each transport that is opened sweeps the journals without a lock: the kernel releases the lock
// when its process dies, in any PID namespace, and a restart of the machine removes journals and
// segments alike. Files that a living process has locked at that moment are left for the next
// sweep.
//
// A lasting value has a note in a file of its own beside the journals: its key, and the time when
// it expires. Each transport that is opened or closed removes the expired values, and the notes of
// values that were got. A second name is removed with its transport, or by the next transport that
// is opened after its journal is gone.
//
// # Living with vLLM-Omni
//
// Python's resource tracker, a helper process, removes all segments that a Python process has
// created or opened and not removed itself, when that process ends in any way: also segments of
// other processes. So the values of a Python producer end with it, and their locks stay; and a
// segment of ours is removed when a Python process ends that had opened but not consumed it, as a
// Get that finds the lock held. This package then returns connector.ErrNotFound. Versions 0.16 and
// 0.18 never remove the lock of a value that is false in Python: a later Put removes such locks,
// and so does Cleanup.
//
// A vLLM-Omni consumer unlocks the lock file before it removes it. If the key is put again in
// between, the new segment has no lock: it is found with its metadata, but not by its key alone,
// there or here. vLLM-Omni's producers have the same fault.
//
// # Concurrency
//
// All methods may be called from any goroutine.
package segment
