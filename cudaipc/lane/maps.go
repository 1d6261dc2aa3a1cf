package lane

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// maps are the memory that payloads lie in, as this process has it mapped. A GPU
// copies from there at full speed when it was told of it, once for each map.
type maps struct {
	mu         sync.Mutex
	all        []*hostMap
	closed     bool
	background sync.WaitGroup // those that the GPU is being told to forget
}

// hostMap is one of them.
type hostMap struct {
	lane     *Lane
	mem      []byte
	readOnly bool

	mu     sync.Mutex
	tried  bool
	dev    *device            // that it is registered with
	host   cudaipc.HostMemory // nil: it is not
	closed bool
}

// Mapped tells the lane of memory of another process's, mapped for reading, in which
// payloads lie that are opened here. A GPU is told of it with the first payload that
// [Message.Unwrap] copies out of it. When nothing reads it any more, release has that
// forgotten and then unmap called, which is all that it does for memory that no GPU
// was told of. Else both happen on a goroutine, since forgetting waits for streams,
// and Close waits for that.
//
// Without that, and where the GPU refuses such memory, Unwrap copies through a
// buffer of the lane's own: see [Stats].
func (l *Lane) Mapped(mem []byte) (release func(unmap func())) {
	h := l.maps.add(&hostMap{lane: l, mem: mem, readOnly: true})
	return func(unmap func()) { l.maps.release(h, unmap, func() {}) }
}

// Mapped tells the lane of memory of the sender's store beside its arena, in which
// payloads are to lie, such as that of a large object. A GPU is told of it with the
// first tensors that are copied there; the rest is as [Lane.Mapped] has it, but that
// release has stays called in place of unmap when the GPU refuses to forget the memory.
func (s *Sender) Mapped(mem []byte) (release func(unmap, stays func())) {
	if s.lane.firstDevice == nil {
		return func(unmap, _ func()) { unmap() }
	}
	l := s.lane
	h := l.maps.add(&hostMap{lane: l, mem: mem})
	return func(unmap, stays func()) { l.maps.release(h, unmap, stays) }
}

func (m *maps) add(h *hostMap) *hostMap {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, h)
	return h
}

func (m *maps) remove(h *hostMap) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(h)
}

func (m *maps) drop(h *hostMap) {
	m.all = slices.DeleteFunc(m.all, func(other *hostMap) bool { return other == h })
}

// release has the GPU forget a map that nothing reads any more, and then unmaps it;
// it calls stays when the GPU refuses.
func (m *maps) release(h *hostMap, unmap, stays func()) {
	registered := h.isRegistered() // and nobody is about to
	m.mu.Lock()
	m.drop(h)
	apart := registered && !m.closed
	if apart {
		m.background.Add(1)
	}
	m.mu.Unlock()
	leave := func() {
		if h.unregister() {
			unmap()
		} else {
			stays()
		}
	}
	if !apart {
		leave()
		return
	}
	go func() {
		defer m.background.Done()
		leave()
	}()
}

// find returns the map that data lies in, and where; nil for none.
func (m *maps) find(data []byte) (h *hostMap, offset int64) {
	at := cudaipc.HostPtr(data)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, h := range m.all {
		base := cudaipc.HostPtr(h.mem)
		if at >= base && at+cudaipc.Ptr(len(data)) <= base+cudaipc.Ptr(len(h.mem)) {
			return h, int64(at - base)
		}
	}
	return nil, 0
}

// close has the GPUs forget all maps. What is released later is released at once.
func (m *maps) close() error {
	m.mu.Lock()
	all := m.all
	m.all, m.closed = nil, true
	m.mu.Unlock()
	m.background.Wait()
	var errs []error
	for _, h := range all {
		errs = append(errs, h.close())
	}
	return errors.Join(errs...)
}

// registeredOn returns the map as a device reads it, or nil if it does not. The first time it
// tells the device.
func (h *hostMap) registeredOn(d *device) cudaipc.HostMemory {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tryRegister(d)
	if h.dev != d {
		return nil
	}
	return h.host
}

// copiesDirectly reports whether a device copies to the map as it is. Memory that one device
// was told of all of them know, by the addresses of this process.
func (h *hostMap) copiesDirectly(d *device) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tryRegister(d)
	return h.host != nil
}

// tryRegister, with mu held, tells a device of the map, once.
func (h *hostMap) tryRegister(d *device) {
	if h.tried || h.closed {
		return
	}
	h.tried = true
	h.register(d)
}

// register, with mu held, tells a device of the map.
func (h *hostMap) register(d *device) {
	host, err := h.registerHost(d)
	if err != nil {
		h.lane.opts.Logger.Info("copies between host and GPU memory are staged", slog.Any("why", err))
		h.lane.count(func(s *Stats) { s.Refused++ })
		return
	}
	h.dev, h.host = d, host
	h.lane.count(func(s *Stats) { s.Registered++ })
}

func (h *hostMap) registerHost(d *device) (cudaipc.HostMemory, error) {
	caps := d.Caps()
	switch {
	case !isPageAligned(h.mem):
		return nil, fmt.Errorf("%w: %d bytes that do not begin and end with a page", cudaipc.ErrUnsupported, len(h.mem))
	case h.readOnly && !caps.RegisterReadOnly:
		return nil, fmt.Errorf("%w: %s does not read memory that is mapped for reading only: %s", cudaipc.ErrUnsupported, caps.Name, caps.Why["RegisterReadOnly"])
	}
	return d.RegisterHost(h.mem, h.readOnly)
}

func (h *hostMap) isRegistered() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.host != nil
}

// unregister has the device forget the map, and reports whether it may be unmapped: a
// device that has failed knows of nothing any more. Memory that a device still has must
// not go, for it would take whatever comes to its addresses for that memory.
func (h *hostMap) unregister() bool {
	h.mu.Lock()
	d := h.dev
	h.mu.Unlock()
	err := h.close()
	if err == nil || d.hasFailed() {
		return true
	}
	h.lane.opts.Logger.Warn("memory stays mapped that a GPU does not forget", slog.Int("bytes", len(h.mem)), slog.Any("why", err))
	return false
}

// close has the device forget the map.
func (h *hostMap) close() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	host := h.host
	h.dev, h.host = nil, nil
	if host == nil {
		return nil
	}
	return host.Close()
}

// isReadInPlace reports whether a payload of so many bytes is read where it lies in the map. For
// one that has it to itself, telling a device takes longer than reading it once saves;
// but it may have been told, for writing.
func (h *hostMap) isReadInPlace(payloadBytes int) bool {
	return payloadBytes+os.Getpagesize() <= len(h.mem) || h.isRegistered()
}

// isPageAligned reports whether memory can be registered: it begins and ends on a page.
func isPageAligned(mem []byte) bool {
	page := os.Getpagesize()
	return len(mem) > 0 && len(mem)%page == 0 && uint64(cudaipc.HostPtr(mem))%uint64(page) == 0
}
