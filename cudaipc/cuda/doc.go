// Package cuda is the driver of package cudaipc for NVIDIA's GPUs. It calls
// libcuda, which it loads when it is opened:
//
//	driver, err := cuda.Open(cuda.Options{})
//
// # The build tag
//
// With the tag cuda, on Linux on amd64 and arm64, programs can use GPUs; without it Open returns an
// error that says so, and the program links none of this code. The tag does not need C: the library
// is called through purego, with and without cgo. But it links the program dynamically against the
// machine's C library, which is the reason for the tag. On a machine without a GPU the same program
// runs as well: Open returns [cudaipc.ErrNoDriver] if there is no library,
// [cudaipc.ErrDriverTooOld] if it is older than CUDA 11.4, and [cudaipc.ErrNoDevice] if the machine
// has no GPU, or none for this process.
//
// Functions are looked up with the version of the signature that is called, so that a newer library
// returns the right one. A missing function is never called; its feature is missing in
// [cudaipc.Caps], and Why contains the function's name.
//
// # Threads
//
// A call runs on its caller's thread, with the GPU's primary context current for its duration: that
// of CUDA's runtime, and so of PyTorch. A context that was current before is current again
// afterwards. Each GPU runs one call at a time, and a Submit holds the lock once for all its
// operations. The calls that are made for each message do not allocate.
//
// No call waits in the driver while it holds the lock, nor holds the lock while memory is mapped or
// registered, which takes time proportional to its size. Synchronize, and the calls that free
// memory (Free, Unimport, and the Close of arenas and of host memory, which all wait for operations
// that were submitted before), record an event and query it, first without a pause, then with
// pauses of up to a millisecond. The memory is then freed without the lock, because the driver may
// wait for operations that were submitted meanwhile. The driver makes a copy from or to plain host
// memory within the call, after all earlier operations of the stream: Submit waits for those before
// it makes the call. So a Submit with such a copy after a wait for a word returns when the word was
// written.
//
// Opening and closing the handle of another process's memory takes a second lock, before the first
// (gpu.importMu, then gpu.mu): a call that may wait for a stream holds that one at most.
//
// Calls do not become part of graphs that other threads capture, and do not end a capture; the
// capture mode of the calling thread is restored.
//
// # Order
//
// Streams do not wait for the legacy default stream, nor it for them. OpWrite has a barrier: a
// reader that sees the word sees the results of earlier operations. OpWait compares with
// wraparound, like [cudaipc.Reached]. CUDA does not see the order that words make, and may
// serialize the wait for a word and its write if both streams share a queue of the GPU: so the
// write of a word must be submitted before the wait for it, or come from another process or the
// CPU.
//
// WrapStream takes the CUstream of another library, such as PyTorch's current one: 1 for the legacy
// default stream, for which PyTorch says 0. The handle is not verified, as in CUDA: an invalid one
// ends the process. A stream whose operations are being captured into a graph is for its owner
// alone.
//
// # Trust
//
// Addresses are the caller's responsibility: a copy to an invalid address ends the device, and one
// of plain host memory, which the CPU makes, the process. Words are checked first, since other
// processes influence them: a word outside of CUDA's memory is [cudaipc.ErrInvalid]. Descriptors
// and handles may come from all processes that are allowed to send them; the driver checks them, so
// the process trusts the driver and its kernel module with them. Those that it refuses are
// [cudaipc.ErrStaleHandle]. A process with the handle of an allocation can write to the whole block
// around it; so Alloc takes whole blocks, but memory that others allocated, and Export exports, may
// have neighbours in its block.
//
// # Failures
//
// A failure that ends the context for CUDA ends the device: see [cudaipc.ErrSticky]. CUDA reports
// it at the next call, so Device.Err makes one. Only the end of the process makes the GPU usable
// again. A process that dies leaves nothing on the GPU.
//
// # Assumptions that were not tested
//
// Tests run against a library of this repository that plays CUDA's, with the signatures, structures
// and numbers of cuda.h (see TestHeader). It shows that the calls are right, and not their effect
// on a GPU. These assumptions come from NVIDIA's documents and from other programs:
//
//   - A mapping made by cuMemMap keeps the memory when its handle is released,
//     in the process that imported it too, and when the exporter dies.
//   - cuMemImportFromShareableHandle leaves the descriptor to the caller.
//   - cuMemExportToShareableHandle makes a descriptor that passes through sockets.
//   - A handle is opened at the base that cuMemGetAddressRange names.
//   - Opening a handle of the process itself is CUDA_ERROR_INVALID_CONTEXT; an expired one is one
//     of INVALID_VALUE, MAP_FAILED, INVALID_HANDLE and OPERATING_SYSTEM, and so is a descriptor
//     that is not CUDA's.
//   - Memory that other processes have open by a handle can be freed, if they no longer access it;
//     they close it later.
//   - Words in shared memory that is registered by two processes, and in memory
//     that is mapped for reading and registered so, can be waited for.
//   - cuPointerGetAttribute returns CUDA_ERROR_INVALID_VALUE for plain host memory, without side
//     effects.
//   - Memory that the process has allocated in multiples of 2 MiB has no
//     neighbours in its block.
//   - After a failure that is sticky, cuStreamQuery and cuMemGetInfo return it.
//   - cuEventRecord on a stream of another context says CUDA_ERROR_INVALID_HANDLE, and
//     words can be waited for and written on the legacy default stream.
//   - cuStreamDestroy returns while the stream waits for a word, and cuMemFree, cuMemUnmap,
//     cuMemHostUnregister and cuIpcCloseMemHandle may wait for all streams, including operations
//     that were submitted between synchronize and that call.
//   - cuMemcpy2DAsync that refuses a pitch returns CUDA_ERROR_INVALID_VALUE and has copied nothing.
//   - cuMemSetAccess takes peers that have no context in this process.
//   - The name of a part of a GPU contains "MIG ".
package cuda
