package tensorqueue

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Defaults and bounds.
const (
	// DefaultName is the name of a queue without a name.
	DefaultName = "queue"
	// LargestSize is the largest bound of a queue, and the default. An item is a request; of the
	// bus.MaxRequests of a bus a queue needs some besides its items.
	LargestSize = bus.MaxRequests - ownRequests
	// MaxTaken bounds the items that are taken and not closed, together with the Gets that wait.
	MaxTaken = 64
	// MaxWaiting bounds the Puts of all processes that wait because the queue is full.
	MaxWaiting = 64
	// DefaultItemBytes is the default of Options.MaxItemBytes.
	DefaultItemBytes = 256 << 20
	// DefaultStoreBytes is the default of Options.StoreBytes.
	DefaultStoreBytes = 1 << 30

	// spareRequests are for requests that are answered with "busy", and for one request per client that
	// is submitted ahead.
	spareRequests = 16 + 256
	// ownRequests are the requests that are no items in the queue: waiting Puts, Gets, and taken items.
	ownRequests = MaxWaiting + 2*MaxTaken + spareRequests
	// putsAtOnce is how many Puts of one process run at a time. Others wait in the process.
	putsAtOnce = 4
	// mostLargeBytes is more than the machine's memory, which bounds the items in segments of their own.
	mostLargeBytes = 1 << 40
	// storeItems is how many of the largest items in the store fit into it.
	storeItems = 16
)

// withdrawTimeout is how long the owner may take to say whether an item is in the queue, after the
// put's context has ended. It is a variable for tests alone.
var withdrawTimeout = time.Second

var (
	// ErrClosed reports a queue that is closed or whose owner is gone.
	ErrClosed = errors.New("tensorqueue: closed")
	// ErrFull reports that the queue had no space until the context ended. Every [*FullError] wraps it.
	ErrFull = errors.New("tensorqueue: full")
	// ErrBusy reports that too many callers wait: see [MaxWaiting] and [MaxTaken].
	ErrBusy = errors.New("tensorqueue: too many callers")
	// ErrItem reports a payload in the queue that is no item, or whose tensors lie outside the memory
	// that they name. The payload is removed.
	ErrItem = errors.New("tensorqueue: invalid item")
)

// FullError says that the queue had no space until the context ended.
type FullError struct {
	MaxSize int   // the queue's bound
	Err     error // how the context ended
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("%v: %d items wait to be taken: %v", ErrFull, e.MaxSize, e.Err)
}

// Unwrap returns ErrFull and the cause.
func (e *FullError) Unwrap() []error { return []error{ErrFull, e.Err} }

// Options configure Open and Join. The zero value works. Join ignores the options that are marked as
// the owner's.
type Options struct {
	// Name is the queue's name; default "queue".
	Name string
	// Socket is the path of the owner's socket; default node.SocketPath of the name.
	Socket string
	// MaxSize bounds the items that are not taken; 0 and the maximum are LargestSize: then memory is
	// the bound, see Bounds in the package documentation. It is the owner's.
	MaxSize int
	// MaxItemBytes bounds the host memory of one item; default 256 MiB. It is the owner's.
	MaxItemBytes int64
	// Transport says how tensors in a GPU's memory travel. Items with less than TensorMinBytes of them
	// travel through host memory. Both are the owner's.
	Transport      bus.TensorTransport
	TensorMinBytes int64
	// StoreBytes is the size of the memory for the items that this process puts, allocated as they fill
	// it; default 1 GiB. An item of more than a sixteenth of it gets memory of its own, which takes
	// longer; so does an item that finds no space for 20 ms.
	StoreBytes int64
	// GPU describes the lane for tensors in the memory of GPUs; nil: only tensors in host memory can be
	// put and got.
	GPU *bus.GPUOptions
	// AllowUIDs are users besides this process's user. Open lets them join; Join joins a queue that one
	// of them owns.
	AllowUIDs []uint32
	// Logger gets a record for each process that joins or departs; nil discards.
	Logger *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Name == "" {
		o.Name = DefaultName
	}
	if o.MaxSize == 0 {
		o.MaxSize = LargestSize
	}
	if o.MaxItemBytes == 0 {
		o.MaxItemBytes = DefaultItemBytes
	}
	if o.StoreBytes == 0 {
		o.StoreBytes = DefaultStoreBytes
	}
	return o
}

func (o Options) validate() error {
	if o.MaxSize < 1 || o.MaxSize > LargestSize {
		return fmt.Errorf("%w: tensorqueue: MaxSize is %d: use 1 to %d, or 0 for that", bus.ErrConfig, o.MaxSize, LargestSize)
	}
	if o.MaxItemBytes < 4<<10 {
		return fmt.Errorf("%w: tensorqueue: MaxItemBytes is %d: use 4096 or more", bus.ErrConfig, o.MaxItemBytes)
	}
	return nil
}

// requests is how many requests may be open at the owner: one per item, and one per Get that waits or
// has an item.
func (o Options) requests() int { return o.MaxSize + ownRequests }

// store describes the memory of this process's items. Large items get segments of their own as long as
// the machine has memory.
func (o Options) store() shmstore.Options {
	return shmstore.Options{
		ArenaBytes: o.StoreBytes, LargeObjectBytes: o.StoreBytes / storeItems &^ 63,
		MaxLargeBytes: mostLargeBytes, Memory: shmstore.Shared,
	}
}

// PutOptions describe an item's tensors: see bus.TensorOptions. The zero value is right for tensors
// that are complete, in memory that stays valid.
type PutOptions = bus.TensorOptions
