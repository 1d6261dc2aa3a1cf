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
	maxFree   = 64 << 20 // bytes of free buffers that are kept
)

// A buffer is memory that this process and the bridge have mapped. Only this process writes to a
// buffer for puts, and only the bridge to a buffer for gets.
type buffer struct {
	data   []byte
	fd     int
	forGet bool

	// link is the bridge that has mapped the buffer, as number; only calls to that bridge use the
	// buffer then.
	link   *link
	number uint32
}

// buffers holds the free buffers of one bridge.
type buffers struct {
	mu     sync.Mutex
	free   []*buffer
	bytes  int
	closed bool
}

// get returns a buffer of at least size bytes, for one call.
func (b *buffers) get(size int, forGet bool) (*buffer, error) {
	room := max(minBuffer, 1<<bits.Len(uint(max(size, 1)-1))) //nolint:gosec // positive
	b.mu.Lock()
	for i := len(b.free) - 1; i >= 0; i-- { // the last one is most likely in the cache
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

// put returns a buffer that neither side uses any more.
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

// close unmaps the free buffers, and those that are returned later.
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

// drop unmaps the memory, here and in the bridge.
func (b *buffer) drop() {
	if b.link != nil {
		_, _ = b.link.lanes[0].conn.Write(frame(opDrop, b.number, 0, "")) // if it fails, the bridge is dying
	}
	_ = unix.Munmap(b.data)
	unix.Close(b.fd)
}
