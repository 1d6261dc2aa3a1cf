package cudaipc

import (
	"context"
	"encoding/hex"
	"strings"
	"sync/atomic"
)

// Driver opens the GPUs of a machine.
type Driver interface {
	// Name is the name of the backend: "cuda" or "emul".
	Name() string
	// Probe returns the capabilities of each device, in the driver's order. Where the driver's own
	// answers are unreliable it tries the operations, and it releases everything that it made.
	Probe(ctx context.Context) ([]Caps, error)
	// Open opens a device by its UUID; the zero UUID is the first one. The error is [ErrNoDevice]
	// for a device that does not exist. Opening it again returns another Device over the same
	// context.
	Open(uuid UUID) (Device, error)
	// Usage counts the open devices of this process, and what was made on them and not closed.
	Usage() Usage
	// Close closes the driver, after its devices.
	Close() error
}

// Device is one GPU, opened.
type Device interface {
	// Caps returns the device's entry of Probe.
	Caps() Caps

	// NewArena makes device memory of at least sizeBytes, which other processes can map by its
	// descriptor. Closing the arena unmaps it here; processes that imported it keep it.
	NewArena(sizeBytes int64) (Arena, error)
	// ImportArena maps an arena of another process. The descriptor stays the caller's. sizeBytes is
	// the exporter's Arena.Bytes.
	ImportArena(fd int, sizeBytes int64) (Arena, error)

	// Alloc makes device memory that can be exported by a handle.
	Alloc(sizeBytes int64) (Ptr, error)
	// Free frees memory of Alloc, after all submitted operations are done.
	Free(Ptr) error
	// Export returns the handle of the allocation that p lies in, and p's offset in it. Memory of
	// an arena has no handle: [ErrUnsupported].
	Export(p Ptr) (h Handle, offset int64, err error)
	// Import maps the allocation of another process's handle, and returns its size. Importing it
	// again returns the same address, and is counted. The errors are [ErrOwnHandle] for a handle of
	// this process, and [ErrStaleHandle].
	Import(h Handle) (base Ptr, sizeBytes int64, err error)
	// Unimport undoes one Import.
	Unimport(base Ptr) error

	// RegisterHost makes memory of this process accessible to the device, so that copies run at
	// full speed and streams can write and wait for words in it. It begins on a page boundary.
	// readOnly: the memory is mapped for reading only; [ErrUnsupported] where the driver refuses
	// that. The memory stays mapped until the HostMemory is closed.
	RegisterHost(mem []byte, readOnly bool) (HostMemory, error)

	// NewStream makes an empty stream.
	NewStream() (Stream, error)
	// WrapStream makes a Stream of an existing stream with another owner: of another library in
	// this process, by the driver's own handle, or of this driver, by its Raw. Operations that are
	// submitted to either run in the order of their submission. Closing the Stream does not destroy
	// the stream, and comes before its end. [LegacyStream] is the legacy default stream. 0 and 2,
	// which mean another stream in each thread or program, are [ErrInvalid], as is a stream of
	// another device.
	WrapStream(raw uintptr) (Stream, error)
	// NewEvent makes an event that no stream has recorded: waiting for it ends at once.
	NewEvent() (Event, error)

	// Err is nil, or the sticky error that ended the device.
	Err() error
	// Close closes the device, after everything that was made on it.
	Close() error
}

// LegacyStream is CUDA's legacy default stream for [Device.WrapStream], which is PyTorch's current
// stream unless the program has set another. It has that number in DLPack, too; the library itself
// often uses 0.
const LegacyStream uintptr = 1

// Ptr is an address that the device can use, in this process.
type Ptr uint64

// Handle names an allocation for other processes, in the driver's format.
type Handle [64]byte

// Arena is device memory that processes share by a descriptor.
type Arena interface {
	Base() Ptr
	// Bytes is a multiple of the device's granularity.
	Bytes() int64
	// FD is a descriptor for other processes, which the arena closes. An imported arena has none:
	// -1.
	FD() int
	Close() error
}

// HostMemory is host memory that the device can use.
type HostMemory interface {
	// Ptr is the device address of the byte at offset.
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

// Reached reports whether the word has reached v, with wraparound.
func (w Word) Reached(v uint32) bool { return Reached(w.Host.Load(), v) }

// Reached compares as streams do, with wraparound, so that words may count for ever.
func Reached(word, v uint32) bool { return int32(word-v) >= 0 }

// Stream runs operations in order.
type Stream interface {
	// Submit queues operations. After an error the operations from some point on were not queued:
	// the caller should synchronize and close the stream.
	Submit(ops ...Op) error
	// Synchronize waits until all submitted operations are done, and returns their error. When ctx
	// ends first, the error is the context's.
	Synchronize(ctx context.Context) error
	// Raw is the driver's own handle, for other libraries and for WrapStream.
	Raw() uintptr
	Close() error
}

// Event is a point in a stream that other streams wait for.
type Event interface {
	// Done reports whether the operations before the recorded point are done.
	Done() (bool, error)
	Close() error
}

// OpKind is the kind of an [Op].
type OpKind uint8

// The operations.
const (
	// OpCopy copies Bytes from Src to Dst; either may be device memory, memory of
	// HostMemory, or plain host memory (see HostPtr).
	OpCopy OpKind = 1 + iota
	// OpCopy2D copies Rows rows of Bytes each, that lie DstPitch and SrcPitch
	// apart; a pitch is at least Bytes.
	OpCopy2D
	// OpWrite stores Value in Word after all operations that were submitted before: a reader of the
	// value sees their results.
	OpWrite
	// OpWait waits until Word has reached Value.
	OpWait
	// OpRecord sets Event to the point after all operations that were submitted before.
	OpRecord
	// OpAwait waits for the point of Event at the time of the Submit.
	OpAwait
)

// Op is one operation on a stream. Its kind determines which fields it uses.
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

// UUID names a GPU, or a part of one, on all machines and in all processes.
type UUID [16]byte

// String returns the form that NVIDIA's tools use.
func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return "GPU-" + strings.Join([]string{h[:8], h[8:12], h[12:16], h[16:20], h[20:]}, "-")
}

// Caps holds the capabilities of a device, as found by trying. Each missing one has an entry in Why
// with the reason.
type Caps struct {
	Device           UUID
	Name             string
	Driver           string // the backend, and the driver's version
	TotalBytes       int64
	FreeBytes        int64 // when it was probed
	GranularityBytes int64 // of arenas

	Arenas           bool // memory can be shared by descriptors
	Handles          bool // memory can be shared by handles
	Words            bool // streams write and wait for words
	RegisterHost     bool
	RegisterReadOnly bool // memory that is mapped for reading only
	MIG              bool // the device is a part of a GPU
	Peers            []UUID

	Why map[string]string // by the name of the field
}

// Usage counts what a driver has made and not closed. Events includes those that the driver uses
// itself, but not those that it keeps for reuse: their number depends on timing.
type Usage struct {
	Devices, Arenas, Allocations, Imports, HostMemories, Streams, Events int

	Bytes int64 // of arenas and allocations that were made here
}
