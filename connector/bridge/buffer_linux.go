package bridge

import (
	"fmt"
	"math/bits"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const (
	minBuffer = 64 << 10
	maxFree   = 64 << 20 // bytes of buffers that are kept for later
)

// A buffer is memory that this process and the bridge have mapped. Only this process writes to one
// for puts, and only the bridge to one for gets.
type buffer struct {
	data   []byte
	fd     int
	forGet bool

	// Of the link whose bridge has it: its number there, in whose calls alone it is used then.
	link   *link
	number uint32
}

// buffers are those of one bridge that are not in use.
type buffers struct {
	mu     sync.Mutex
	free   []*buffer
	bytes  int
	closed bool
}

// get returns a buffer of at least so many bytes, which no other call has.
func (b *buffers) get(size int, forGet bool) (*buffer, error) {
	room := max(minBuffer, 1<<bits.Len(uint(max(size, 1)-1))) //nolint:gosec // positive
	b.mu.Lock()
	for i := len(b.free) - 1; i >= 0; i-- { // the last is the warmest
		if free := b.free[i]; free.forGet == forGet && len(free.data) == room {
			b.free = append(b.free[:i], b.free[i+1:]...)
			b.bytes -= room
			b.mu.Unlock()
			return free, nil
		}
	}
	b.mu.Unlock()
	return newBuffer(room, forGet)
}

// put takes a buffer back that neither side uses any more.
func (b *buffers) put(free *buffer) {
	b.mu.Lock()
	keep := !b.closed && b.bytes+len(free.data) <= maxFree
	if keep {
		b.free = append(b.free, free)
		b.bytes += len(free.data)
	}
	b.mu.Unlock()
	if !keep {
		free.drop()
	}
}

// close gives back what is free, and from now on what becomes free.
func (b *buffers) close() {
	b.mu.Lock()
	free := b.free
	b.free, b.closed = nil, true
	b.mu.Unlock()
	for _, f := range free {
		f.drop()
	}
}

func newBuffer(size int, forGet bool) (*buffer, error) {
	if size > minBuffer {
		if short := headroom.System().Check(uint64(size)); short != nil { //nolint:gosec // positive
			return nil, fmt.Errorf("a buffer of %d bytes: %s leaves %d", size, short.Limit, short.AvailableBytes)
		}
	}
	fd, err := unix.MemfdCreate("omnibus-bridge", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("a buffer of %d bytes: %w", size, err)
	}
	b := &buffer{fd: fd, forGet: forGet}
	if err = headroom.Allocate(fd, int64(size)); err == nil {
		prot := unix.PROT_READ
		if !forGet {
			prot |= unix.PROT_WRITE
		}
		b.data, err = unix.Mmap(fd, 0, size, prot, unix.MAP_SHARED)
	}
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("a buffer of %d bytes: %w", size, err)
	}
	return b, nil
}

// drop gives the memory back, here and in the bridge.
func (b *buffer) drop() {
	if b.link != nil {
		_, _ = b.link.lanes[0].conn.Write(frame(opDrop, b.number, 0, "")) // if it fails, the bridge is dying
	}
	_ = unix.Munmap(b.data)
	unix.Close(b.fd)
}
