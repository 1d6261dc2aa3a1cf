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
	// DefaultName is the name of a queue that is given none.
	DefaultName = "queue"
	// LargestSize is the largest bound of a queue, and the default: an item is a request, and
	// a bus has bus.MaxRequests, of which a queue needs some beside its items.
	LargestSize = bus.MaxRequests - ownRequests
	// MaxTaken is how many items may be taken and not closed, together with the
	// Gets that wait.
	MaxTaken = 64
	// MaxWaiting is how many Puts may wait because the queue is full, in all
	// processes together.
	MaxWaiting = 64
	// DefaultItemBytes is the default of Options.MaxItemBytes.
	DefaultItemBytes = 256 << 20
	// DefaultStoreBytes is the default of Options.StoreBytes.
	DefaultStoreBytes = 1 << 30

	// spareRequests lets requests in that are told that there are too many, and those
	// that clients submit ahead, one each.
	spareRequests = 16 + 256
	// ownRequests are those that are no items in the queue: of Puts that wait, of Gets, and
	// of items that were taken.
	ownRequests = MaxWaiting + 2*MaxTaken + spareRequests
	// putsAtOnce is how many Puts of one process are under way: others wait
	// in the process for those.
	putsAtOnce = 4
	// mostLargeBytes bounds the items in segments of their own: the machine's memory does.
	mostLargeBytes = 1 << 40
	// storeItems is how many of the largest items that lie in a store fit it.
	storeItems = 16
)

// givingUp is how long the owner may take to say what became of an item that was put,
// when the putter waits for room no longer. It is a variable for tests alone.
var withdrawTimeout = time.Second

var (
	// ErrClosed reports a queue that is closed, or whose owner is gone.
	ErrClosed = errors.New("tensorqueue: closed")
	// ErrFull reports that the queue had no room until the context ended: it is in
	// every [*FullError].
	ErrFull = errors.New("tensorqueue: full")
	// ErrBusy reports that more callers wait than a queue lets in: see [MaxWaiting]
	// and [MaxTaken].
	ErrBusy = errors.New("tensorqueue: too many callers")
	// ErrItem reports something in the queue that is no item, or whose tensors lie
	// where there are none. It is done.
	ErrItem = errors.New("tensorqueue: invalid item")
)

// FullError says that the queue had no room until the context ended.
type FullError struct {
	MaxSize int   // the queue's bound
	Err     error // how the context ended
}

// Error implements error.
func (e *FullError) Error() string {
	return fmt.Sprintf("%v: %d items wait to be taken: %v", ErrFull, e.MaxSize, e.Err)
}

// Unwrap gives ErrFull and the cause.
func (e *FullError) Unwrap() []error { return []error{ErrFull, e.Err} }

// Options configure Open and Join. The zero value works. What is said to be the
// owner's is ignored by Join, for the owner has decided it.
type Options struct {
	// Name is the queue's; default "queue".
	Name string
	// Socket is the path of the owner's socket; default node.SocketPath of the name.
	Socket string
	// MaxSize bounds the items that have not been taken; 0, and most, is LargestSize: then
	// memory is the bound, as the package says under Bounds. It is the owner's.
	MaxSize int
	// MaxItemBytes bounds what one item takes in host memory; default 256 MiB. It is
	// the owner's.
	MaxItemBytes int64
	// Transport says how tensors travel that lie in a GPU's memory, and
	// TensorMinBytes from how many bytes of an item on: smaller ones travel through
	// host memory. They are the owner's.
	Transport      bus.TensorTransport
	TensorMinBytes int64
	// StoreBytes is the memory that items lie in that this process puts, taken as they fill
	// it; default 1 GiB. An item of more than a sixteenth of it gets memory of its own, which
	// takes longer than to find some there; so does one that finds none there for 20 ms.
	StoreBytes int64
	// GPU describes the lane that carries tensors in the memory of GPUs; nil: there
	// is none, and only tensors in host memory can be put and got.
	GPU *bus.GPUOptions
	// AllowUIDs are users besides the one that this process runs as: Open lets them
	// join, and Join joins a queue that one of them owns.
	AllowUIDs []uint32
	// Logger is told of processes that come and go; nil discards.
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

// requests is how many may be open at the owner: one for each item, and one for
// each that gets, or has got, one.
func (o Options) requests() int { return o.MaxSize + ownRequests }

// store describes where this process's items lie. Large ones get segments of their
// own as long as the machine has memory.
func (o Options) store() shmstore.Options {
	return shmstore.Options{
		ArenaBytes: o.StoreBytes, LargeObjectBytes: o.StoreBytes / storeItems &^ 63,
		MaxLargeBytes: mostLargeBytes, Memory: shmstore.Shared,
	}
}

// PutOptions say more of an item's tensors: see bus.TensorOptions. The zero value
// does for tensors that are complete, in memory that stays.
type PutOptions = bus.TensorOptions
