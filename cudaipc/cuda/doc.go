// Package cuda is the driver of package cudaipc for NVIDIA's GPUs. It calls
// libcuda, which it loads when it is opened:
//
//	driver, err := cuda.Open(cuda.Options{})
//
// # The build tag
//
// With the tag cuda, on Linux on amd64 and arm64, programs can use GPUs; without
// it Open is an error that says so, and the program links nothing of all this.
// The tag does not ask for C: the library is called through purego, with and
// without cgo. It makes the program dynamically linked, though, against the C
// library of the machine, and that is why it is a tag. Where a GPU is missing
// the same program runs as well: Open says [cudaipc.ErrNoDriver] if there is no
// library, [cudaipc.ErrDriverTooOld] if it is older than CUDA 11.4, and
// [cudaipc.ErrNoDevice] if there is no GPU in the machine, or none for this
// process.
//
// Functions are looked up with the version whose signature is called, so that a
// newer library gives the right one. One that is missing is never called. What
// it was needed for is missing in [cudaipc.Caps], and Why has its name.
//
// # Threads
//
// A call is made on the thread of whoever wants it, which gets the GPU's primary
// context for just so long: that of CUDA's runtime, and so of PyTorch. A context that
// somebody else has made current there is so again afterwards. Each GPU has one call at
// a time, and a Submit is one turn whatever it is given. None of the calls that are made
// for each message allocates.
//
// Nobody waits in the driver with the lock, nor holds it while memory is mapped or
// registered, which takes as long as that is large. Whoever waits, in Synchronize, or in what
// takes memory away (Free, Unimport, and the Close of arenas and of host memory, which
// all wait for what was submitted before), records an event and asks after it, at once
// at first, then in naps of up to a millisecond. Memory is then taken away without the
// lock, should the driver wait for something that was submitted meanwhile. A copy from
// or to plain host memory is done by the driver within the call, behind all that the
// stream has before it: Submit waits for that too before it makes the call. So a Submit
// with such a copy behind a wait for a word returns when the word has come.
//
// Calls take no part in the capture of graphs in other threads, and do not end one; nor
// does the thread that makes them take part less than before.
//
// # Order
//
// Streams do not wait for the legacy default stream, nor it for them. OpWrite
// has a barrier in front: who sees the word sees what was written before. OpWait
// compares in a circle, like [cudaipc.Reached]. CUDA does not see the order that
// words make, and may serialize what waits for a word and what writes it if both
// go into streams that share a queue of the GPU: what writes a word has to be
// submitted before what waits for it, or come from elsewhere.
//
// WrapStream takes the CUstream of another library, such as PyTorch's current one: 1 for
// the legacy default stream, for which PyTorch says 0. The handle is believed, as
// CUDA believes it: one that is no stream ends the process. A stream whose work is
// being captured into a graph is for its owner alone.
//
// # Trust
//
// Addresses are the caller's own: a copy to an address that is none ends the
// device, and one that the CPU makes, of plain host memory, the process. Words
// are looked at first, since other processes have a say in them: one that is not
// in memory of CUDA's is [cudaipc.ErrInvalid]. Descriptors and handles may come
// from anybody who is allowed to give them; the driver checks them, and so the
// process trusts the driver and its kernel module with them. What it says no to
// is [cudaipc.ErrStaleHandle]. Who has the handle of an allocation can write to
// all of the block that it is in; so Alloc takes whole blocks, and what others
// allocated, and Export exports, may have neighbours.
//
// # Failures
//
// What ends the context for CUDA ends the device: see [cudaipc.ErrSticky]. CUDA
// tells of it with the next call, so Device.Err makes one. Only the end of the
// process brings the GPU back. A process that dies leaves nothing behind.
//
// # What was not tried
//
// Tests run against a library of this repository's own that plays CUDA's, with
// the signatures, structures and numbers of cuda.h (see TestHeader). It
// shows that calls are made right, and not what a GPU makes of them. These are
// taken from NVIDIA's documents and from what others do:
//
//   - A mapping made by cuMemMap keeps the memory when its handle is released,
//     in the process that imported it too, and when the exporter dies.
//   - cuMemImportFromShareableHandle leaves the descriptor to the caller.
//   - cuMemExportToShareableHandle makes a descriptor that passes through sockets.
//   - A handle is opened at the base that cuMemGetAddressRange names.
//   - RequestOptions a handle of the process itself is CUDA_ERROR_INVALID_CONTEXT; one
//     that is no longer good is one of INVALID_VALUE, MAP_FAILED, INVALID_HANDLE
//     and OPERATING_SYSTEM, and so is a descriptor that is none of CUDA's.
//   - Memory that other processes have open by a handle can be freed, if they do not
//     touch it any more; they close it later.
//   - Words in shared memory that is registered by two processes, and in memory
//     that is mapped for reading and registered so, can be waited for.
//   - cuPointerGetAttribute says CUDA_ERROR_INVALID_VALUE of plain host memory,
//     and never harms anything.
//   - Memory that the process has allocated in multiples of 2 MiB has no
//     neighbours in its block.
//   - After a failure that is sticky, cuStreamQuery and cuMemGetInfo return it.
//   - cuEventRecord on a stream of another context says CUDA_ERROR_INVALID_HANDLE, and
//     words can be waited for and written on the legacy default stream.
//   - cuStreamDestroy returns while the stream waits for a word, and cuMemFree,
//     cuMemUnmap, cuMemHostUnregister and cuIpcCloseMemHandle may wait for all
//     streams: work submitted between settling and that call holds it up.
//   - cuMemcpy2DAsync that does not take a pitch says CUDA_ERROR_INVALID_VALUE
//     and has done nothing.
//   - cuMemSetAccess takes peers that have no context in this process.
//   - The name of a part of a GPU has "MIG " in it.
package cuda
