package cudaipc

import (
	"context"
	"encoding/hex"
	"strings"
	"sync/atomic"
)

// Driver opens the GPUs of a machine.
type Driver interface {
	// Name says which backend it is: "cuda" or "emul".
	Name() string
	// Probe says what each device can do, in the driver's order. It tries things
	// out where the driver's own answers are not to be relied on, and leaves
	// nothing behind.
	Probe(ctx context.Context) ([]Caps, error)
	// Open opens a device by its UUID; the zero UUID is the first one. The error
	// is [ErrNoDevice] for one that is not there. RequestOptions it again returns
	// another Device over the same context.
	Open(uuid UUID) (Device, error)
	// Usage is what is open, and was made and not closed, in this process.
	Usage() Usage
	// Close closes the driver. Devices are closed before.
	Close() error
}

// Device is one GPU, opened.
type Device interface {
	// Caps is what Probe said of the device.
	Caps() Caps

	// NewArena makes device memory of at least so many bytes that other
	// processes can be given, as a descriptor. Closing it unmaps it here;
	// processes that imported it keep it.
	NewArena(sizeBytes int64) (Arena, error)
	// ImportArena maps an arena of another process. The descriptor stays the
	// caller's. sizeBytes is what the exporter's Arena.Bytes says.
	ImportArena(fd int, sizeBytes int64) (Arena, error)

	// Alloc makes device memory that can be exported by a handle.
	Alloc(sizeBytes int64) (Ptr, error)
	// Free frees it, when all that was submitted is done.
	Free(Ptr) error
	// Export returns the handle of the allocation that p lies in, and where in it.
	// Memory of an arena has none: [ErrUnsupported].
	Export(p Ptr) (h Handle, offset int64, err error)
	// Import maps the allocation behind another process's handle, and says how
	// large it is. RequestOptions it again counts, and returns the same address. The
	// errors are [ErrOwnHandle] for a handle of this process, and [ErrStaleHandle].
	Import(h Handle) (base Ptr, sizeBytes int64, err error)
	// Unimport undoes one Import.
	Unimport(base Ptr) error

	// RegisterHost makes memory of this process known to the device, so that
	// copies run at full speed and words in it can be written and waited for. It
	// begins on a page boundary. readOnly says that the memory is mapped for
	// reading only: [ErrUnsupported] where the driver refuses that. The memory
	// stays mapped until the HostMemory is closed.
	RegisterHost(mem []byte, readOnly bool) (HostMemory, error)

	// NewStream makes an empty stream.
	NewStream() (Stream, error)
	// WrapStream makes a Stream of one that is somebody else's: of another library in
	// this process, by the driver's own handle, or of this driver, by its Raw. What
	// is submitted here and there runs in the order in which it was submitted.
	// Closing the Stream leaves the other alive, and comes before its end.
	// [LegacyStream] is the legacy default stream. 0 and 2, which stand for
	// another stream in each thread or program, are [ErrInvalid], as is a
	// stream of another device.
	WrapStream(raw uintptr) (Stream, error)
	// NewEvent makes an event that no stream has recorded: waiting for it ends
	// at once.
	NewEvent() (Event, error)

	// Err is nil, or the sticky error that ended the device.
	Err() error
	// Close closes the device. What was made on it is closed before.
	Close() error
}

// LegacyStream is CUDA's legacy default stream for [Device.WrapStream], which is
// PyTorch's current stream unless somebody has set another. It has that name in DLPack,
// too; the library itself often says 0.
const LegacyStream uintptr = 1

// Ptr is an address that the device can use, in this process.
type Ptr uint64

// Handle names an allocation for other processes, in the driver's own format.
type Handle [64]byte

// Arena is device memory that processes share by a descriptor.
type Arena interface {
	Base() Ptr
	// Bytes is a multiple of the device's granularity.
	Bytes() int64
	// FD is a descriptor for passing on, which stays the arena's own. An imported
	// arena has none: -1.
	FD() int
	Close() error
}

// HostMemory is host memory that the device can use.
type HostMemory interface {
	// Ptr is where the device finds the byte at offset.
	Ptr(offset int64) Ptr
	// Word is the 32-bit word at offset, a multiple of 4.
	Word(offset int64) Word
	Close() error
}

// Word is 32 bits of registered host memory. Streams reach it by its address,
// the CPU by its pointer. It has one writing process.
type Word struct {
	Host *atomic.Uint32
	Dev  Ptr
}

// Reached reports whether the word has come to v, in a circle.
func (w Word) Reached(v uint32) bool { return Reached(w.Host.Load(), v) }

// Reached compares as streams do: in a circle, so that words may count for ever.
func Reached(word, v uint32) bool { return int32(word-v) >= 0 }

// Stream runs operations in order.
type Stream interface {
	// Submit queues operations. An error means that those from some point on were
	// not queued: the stream is then best synchronized and closed.
	Submit(ops ...Op) error
	// Synchronize waits until everything submitted is done, and returns what went
	// wrong meanwhile. When ctx ends first, the error is the context's.
	Synchronize(ctx context.Context) error
	// Raw is the driver's own handle, for other libraries, and for WrapStream.
	Raw() uintptr
	Close() error
}

// Event is a point in a stream that others wait for.
type Event interface {
	// Done reports whether what was recorded is done.
	Done() (bool, error)
	Close() error
}

// OpKind says what an [Op] does.
type OpKind uint8

// The operations.
const (
	// OpCopy copies Bytes from Src to Dst; either may be device memory, memory of
	// HostMemory, or plain host memory (see HostPtr).
	OpCopy OpKind = 1 + iota
	// OpCopy2D copies Rows rows of Bytes each, that lie DstPitch and SrcPitch
	// apart; a pitch is at least Bytes.
	OpCopy2D
	// OpWrite stores Value in Word, behind all that was submitted before: who
	// sees the value sees that done.
	OpWrite
	// OpWait waits until Word has reached Value.
	OpWait
	// OpRecord makes Event the point behind all that was submitted before.
	OpRecord
	// OpAwait waits for the point that Event is now.
	OpAwait
)

// Op is one operation on a stream. Which fields count is the kind's to say.
type Op struct {
	Kind               OpKind
	Dst, Src           Ptr
	Bytes              int64
	DstPitch, SrcPitch int64
	Rows               int64
	Word               Word
	Value              uint32
	Event              Event
}

// UUID names a GPU, or a part of one, on every machine and in every process.
type UUID [16]byte

// String gives it the form that NVIDIA's tools use.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Caps is what a device offers, as found by trying. What it lacks has an entry
// in Why that says so in words.
type Caps struct {
	Device           UUID
	Name             string
	Driver           string // the backend, and the driver's version
	TotalBytes       int64
	FreeBytes        int64 // when it was probed
	GranularityBytes int64 // of arenas

	Arenas           bool // memory that is shared by descriptors
	Handles          bool // memory that is shared by handles
	Words            bool // streams write and wait for words
	RegisterHost     bool
	RegisterReadOnly bool // memory that is mapped for reading only
	MIG              bool // a part of a GPU
	Peers            []UUID

	Why map[string]string // by the name of the field
}

// Usage counts what a driver has made and not closed. Events are also those that it
// uses itself, but not those that it keeps for the next use: how many these are is a
// matter of time.
type Usage struct {
	Devices, Arenas, Allocations, Imports, HostMemories, Streams, Events int

	Bytes int64 // of arenas and allocations that were made here
}
