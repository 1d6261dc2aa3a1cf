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

// maps holds the memory of payloads, as this process has it mapped. A GPU copies from registered
// memory at full speed; each map is registered once.
type maps struct {
	mu         sync.Mutex
	all        []*hostMap
	closed     bool
	background sync.WaitGroup // running unregister calls
}

// hostMap is one mapped memory.
type hostMap struct {
	lane     *Lane
	mem      []byte
	readOnly bool

	mu     sync.Mutex
	tried  bool
	dev    *device            // device of the registration
	host   cudaipc.HostMemory // nil: not registered
	closed bool
}

// Mapped adds memory of another process, mapped for reading, with payloads that are opened here.
// The first [Message.Unwrap] that copies from it registers it with the GPU. When no message reads
// it any more, release unregisters it and then calls unmap; for memory that no GPU has registered
// it only calls unmap. Otherwise both happen on another goroutine, since unregistering waits for
// streams, and Close waits for that.
//
// For memory that was not added, or that the GPU refuses, Unwrap copies through a buffer of the
// lane's own: see [Stats].
func (l *Lane) Mapped(mem []byte) (release func(unmap func())) {
	h := l.maps.add(&hostMap{lane: l, mem: mem, readOnly: true})
	return func(unmap func()) { l.maps.release(h, unmap, func() {}) }
}

// Mapped adds memory of the sender's store beside its arena, with future payloads, such as that of
// a large object. The first copy of tensors to it registers it with the GPU. release works as that
// of [Lane.Mapped], but calls stays in place of unmap when the GPU refuses to unregister the
// memory.
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

// release unregisters a map that no message reads any more, and then calls unmap, or stays when the
// GPU refuses.
func (m *maps) release(h *hostMap, unmap, stays func()) {
	registered := h.isRegistered() // no message is about to register it
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

// find returns the map that contains data, and data's offset in it; nil for none.
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

// close unregisters all maps. Maps that are released later are unmapped at once.
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

// registeredOn returns the map as registered on a device, or nil if it is not. The first call
// registers it.
func (h *hostMap) registeredOn(d *device) cudaipc.HostMemory {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tryRegister(d)
	if h.dev != d {
		return nil
	}
	return h.host
}

// copiesDirectly reports whether a device copies to the map directly. Memory that is registered
// with one device is known to all of them, by the addresses of this process.
func (h *hostMap) copiesDirectly(d *device) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tryRegister(d)
	return h.host != nil
}

// tryRegister registers the map with a device, once. mu is held.
func (h *hostMap) tryRegister(d *device) {
	if h.tried || h.closed {
		return
	}
	h.tried = true
	h.register(d)
}

// register registers the map with a device. mu is held.
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

// unregister unregisters the map, and reports whether it may be unmapped: a failed device uses no
// memory any more. Memory that is still registered must stay mapped, because the device would
// access any memory that is mapped at its addresses later.
func (h *hostMap) unregister() bool {
	h.mu.Lock()
	d := h.dev
	h.mu.Unlock()
	err := h.close()
	if err == nil || d.hasFailed() {
		return true
	}
	h.lane.opts.Logger.Warn("memory stays mapped because a GPU does not unregister it", slog.Int("bytes", len(h.mem)), slog.Any("why", err))
	return false
}

// close unregisters the map.
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

// isReadInPlace reports whether a payload of payloadBytes is read in the map. For a payload that
// fills the map, registering takes longer than one direct read saves; but the map may be registered
// for writing already.
func (h *hostMap) isReadInPlace(payloadBytes int) bool {
	return payloadBytes+os.Getpagesize() <= len(h.mem) || h.isRegistered()
}

// isPageAligned reports whether memory begins and ends on a page, so that it can be registered.
func isPageAligned(mem []byte) bool {
	page := os.Getpagesize()
	return len(mem) > 0 && len(mem)%page == 0 && uint64(cudaipc.HostPtr(mem))%uint64(page) == 0
}
