package emul

import (
	"context"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// primary holds a process's objects on a device, from its first open until it is closed as often.
// CUDA calls it the primary context.
type primary struct {
	driver *Driver
	gpu    *gpu

	halted   chan struct{} // the device has failed, or is being closed
	haltOnce sync.Once

	legacyMu sync.Mutex // held while the default stream is made

	mu      sync.Mutex
	closed  bool
	memory  map[cudaipc.Ptr]*memory // by base
	opened  map[nonce]*memory       // imports, which are in memory as well
	streams map[*stream]struct{}
	legacy  *stream // the default stream; nil until its first use
	hosts   int
	events  int
	running sync.WaitGroup // streams
}

// memory is device memory of any kind.
type memory struct {
	*region
	fd      int // -1 for imports
	charged int64
	handle  handleInfo // of allocations and imports
	opens   int        // of imports
}

func newPrimary(d *Driver, g *gpu) *primary {
	return &primary{
		driver:  d,
		gpu:     g,
		halted:  make(chan struct{}),
		memory:  map[cudaipc.Ptr]*memory{},
		opened:  map[nonce]*memory{},
		streams: map[*stream]struct{}{},
	}
}

func (p *primary) halt() { p.haltOnce.Do(func() { close(p.halted) }) }

func (p *primary) isHalted() bool {
	select {
	case <-p.halted:
		return true
	default:
		return false
	}
}

// failure returns the reason why the device is unusable, or nil.
func (p *primary) failure(call string) error {
	p.mu.Lock()
	closed := p.closed
	p.mu.Unlock()
	if closed {
		return contextDestroyed.with(call, p.gpu.uuid, cudaipc.ErrClosed, "the device is")
	}
	return p.gpu.failed(call)
}

// fail ends the device with the error of an operation.
func (p *primary) fail(cause *cudaipc.Error) { p.gpu.fail(cause) }

// synchronize waits until the operations that were submitted before are done.
func (p *primary) synchronize() {
	p.mu.Lock()
	all := make([]*stream, 0, len(p.streams))
	for s := range p.streams {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		_ = s.wait(context.Background())
	}
}

// track records memory, unless the device was closed meanwhile.
func (p *primary) track(call string, m *memory) error {
	p.mu.Lock()
	closed := p.closed
	if !closed {
		p.memory[cudaipc.Ptr(m.base)] = m
	}
	p.mu.Unlock()
	if closed {
		p.release(m)
		return contextDestroyed.with(call, p.gpu.uuid, cudaipc.ErrClosed, "the device was")
	}
	return nil
}

// untrack removes memory from the records; false means that another call has.
func (p *primary) untrack(m *memory) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.memory[cudaipc.Ptr(m.base)] != m {
		return false
	}
	delete(p.memory, cudaipc.Ptr(m.base))
	return true
}

// release releases memory that is not recorded.
func (p *primary) release(m *memory) {
	p.driver.regions.remove(m.region)
	if m.kind == ofAllocation {
		ownHandles.Delete(m.handle.nonce)
	}
	if m.fd >= 0 {
		unix.Close(m.fd)
	}
	p.gpu.refund(m.charged)
}

// close ends the streams and releases all objects that are left.
func (p *primary) close() {
	p.mu.Lock()
	p.closed = true // first, for calls that continue when the streams end
	left := p.memory
	p.memory, p.opened = nil, nil
	p.mu.Unlock()
	p.halt()
	p.running.Wait()
	for _, m := range left {
		p.release(m)
	}
	p.driver.regions.removeHosts(p)
}

func (p *primary) addUsage(u *cudaipc.Usage) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.memory {
		switch {
		case m.kind == ofAllocation:
			u.Allocations++
		case m.kind == ofArena && m.fd >= 0:
			u.Arenas++
		case m.kind == ofArena:
			u.Imports++
		default:
			u.Imports += m.opens
		}
	}
	u.HostMemories += p.hosts
	u.Streams += len(p.streams)
	if _, running := p.streams[p.legacy]; running {
		u.Streams--
	}
	u.Events += p.events
}

// haltCause returns the reason why the device was halted.
func (p *primary) haltCause() *cudaipc.Error {
	p.gpu.mu.Lock()
	defer p.gpu.mu.Unlock()
	if p.gpu.cause != nil {
		return p.gpu.cause
	}
	return contextDestroyed.with("Close", p.gpu.uuid, cudaipc.ErrSticky, "the device was closed")
}

func (p *primary) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}
