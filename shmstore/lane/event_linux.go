package lane

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Event is an eventfd: whoever has it can signal it, and one goroutine of one
// process can wait for that without holding a thread. Signals that nobody has
// waited for add up to one.
type Event struct {
	fd   int
	file *os.File
	raw  syscall.RawConn
	// buf takes the count, for the one goroutine that waits.
	buf [8]byte
	// signal is kept so that a signal allocates nothing.
	signal func(fd uintptr) bool
}

// eventLink is what the kernel calls the file of an eventfd.
const eventLink = "anon_inode:[eventfd]"

// NewEvent makes an event. Close it in the end.
func NewEvent() (*Event, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("new event: eventfd: %w", err)
	}
	return newEvent(fd)
}

// OpenEvent takes an event that a peer handed over. It owns fd from here on,
// also if it fails. Anything but an eventfd is [ErrPeer]: a write to a pipe,
// say, could end this process.
func OpenEvent(fd int) (*Event, error) {
	link, err := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
	if err == nil && link != eventLink {
		err = fmt.Errorf("%w: it sent %q as an event", ErrPeer, link)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("open event: %w", err)
	}
	return newEvent(fd)
}

func newEvent(fd int) (*Event, error) {
	e := &Event{fd: fd, file: os.NewFile(uintptr(fd), "event"), signal: writeOne}
	raw, err := e.file.SyscallConn()
	if err != nil {
		_ = e.file.Close() // an eventfd holds nothing that could be lost
		return nil, fmt.Errorf("event: %w", err)
	}
	e.raw = raw
	return e, nil
}

// writeOne adds one to the count. A count that is at its limit makes the write
// fail, and whoever waits is awake already.
func writeOne(fd uintptr) bool {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for range maxInterrupts {
		if _, err := unix.Write(int(fd), one[:]); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return true
}

// maxInterrupts bounds how often a write starts again after a signal. An
// eventfd that does not block is not interrupted; a peer can make it block.
const maxInterrupts = 64

// Signal wakes whoever waits, now or next. Any goroutine may call it; after
// Close it does nothing.
func (e *Event) Signal() { _ = e.raw.Write(e.signal) }

// Wait returns after a signal. Only one goroutine may wait. After Close the
// error is [ErrClosed].
func (e *Event) Wait() error {
	_, err := e.file.Read(e.buf[:])
	if errors.Is(err, os.ErrClosed) {
		return ErrClosed
	}
	return err
}

// FD is the descriptor, to be handed to the peer. It stays the event's, and
// valid until Close.
func (e *Event) FD() int { return e.fd }

// Close ends a Wait and closes the descriptor. It may be called again.
func (e *Event) Close() error {
	if err := e.file.Close(); err != nil && !errors.Is(err, os.ErrClosed) {
		return fmt.Errorf("close event: %w", err)
	}
	return nil
}

// Events are a [Waker]: this side sleeps on Own, the other on Peer. They stay
// the caller's to close.
type Events struct{ Own, Peer *Event }

// Park sleeps until Own is signaled.
func (e Events) Park() error { return e.Own.Wait() }

// Unpark signals Own.
func (e Events) Unpark() { e.Own.Signal() }

// Wake signals Peer.
func (e Events) Wake() { e.Peer.Signal() }
