package emul

import (
	"slices"
	"sync"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// regionKind is the origin of a region.
type regionKind uint8

const (
	ofArena regionKind = iota + 1
	ofAllocation
	ofImport
	ofHost
)

// region is memory that operations may access.
type region struct {
	span
	kind     regionKind
	primary  *primary
	readOnly bool
	users    int // running operations that access it
}

// regions holds all memory of a driver. An operation acquires the regions that it accesses, so that
// they are not unmapped meanwhile.
type regions struct {
	mu       sync.Mutex
	released sync.Cond
	space    space
	all      []*region // by address
}

func newRegions() *regions {
	r := &regions{}
	r.released.L = &r.mu
	return r
}

// touching returns the regions that overlap a range.
func (r *regions) touching(s span) []*region {
	from, _ := slices.BinarySearchFunc(r.all, s.base, func(a *region, base uintptr) int {
		if a.end() <= base {
			return -1
		}
		return 1
	})
	to := from
	for to < len(r.all) && r.all[to].base < s.end() {
		to++
	}
	return r.all[from:to]
}

func (r *regions) insert(a *region) {
	i, _ := slices.BinarySearchFunc(r.all, a.base, func(b *region, base uintptr) int {
		if b.base < base {
			return -1
		}
		return 1
	})
	r.all = slices.Insert(r.all, i, a)
}

// mapDevice maps a descriptor as a region of device memory.
func (r *regions) mapDevice(p *primary, kind regionKind, fd int, bytes, align int64) (*region, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	base, err := r.space.reserve(uintptr(bytes), uintptr(align))
	if err != nil {
		return nil, err
	}
	a := &region{span: span{base, uintptr(bytes)}, kind: kind, primary: p}
	if err := mapOver(a.span, fd); err != nil {
		r.space.release(a.span)
		return nil, err
	}
	r.insert(a)
	return a, nil
}

// addHost makes a region of mapped memory; ok is false if a part of it is registered or reserved.
func (r *regions) addHost(p *primary, s span, readOnly bool) (a *region, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	page := uintptr(pageBytes)
	pages := span{s.base, alignUp(s.bytes, page)}
	if len(r.touching(pages)) > 0 || r.space.overlaps(pages) {
		return nil, false
	}
	a = &region{span: s, kind: ofHost, primary: p, readOnly: readOnly}
	r.insert(a)
	return a, true
}

// remove removes a region, and waits for the operations that access it.
func (r *regions) remove(a *region) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.Index(r.all, a)
	if i < 0 {
		return
	}
	r.all = slices.Delete(r.all, i, i+1)
	for a.users > 0 {
		r.released.Wait()
	}
	if a.kind == ofHost {
		return
	}
	if unmapInPlace(a.span) == nil {
		r.space.release(a.span)
	}
}

// find returns the region of an address, or nil.
func (r *regions) find(p cudaipc.Ptr) *region {
	r.mu.Lock()
	defer r.mu.Unlock()
	if found := r.touching(span{uintptr(p), 1}); len(found) == 1 {
		return found[0]
	}
	return nil
}

// access is the kind of access of an operation.
type access uint8

const (
	read access = iota
	write
)

// acquire keeps a range mapped for a stream of p until release. The region is nil for host memory
// that is not registered.
func (r *regions) acquire(p *primary, at cudaipc.Ptr, bytes int64, how access) (a *region, ok bool) {
	s := span{uintptr(at), uintptr(bytes)}
	if s.base == 0 || s.end() < s.base {
		return nil, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found := r.touching(s)
	if len(found) == 0 {
		return nil, !r.space.overlaps(s)
	}
	a = found[0]
	switch {
	case !a.contains(s):
	case a.readOnly && how == write:
	case a.kind != ofHost && a.primary != p && !p.driver.peers():
	default:
		a.users++
		return a, true
	}
	return nil, false
}

func (r *regions) release(a *region) {
	if a == nil {
		return
	}
	r.mu.Lock()
	if a.users--; a.users == 0 {
		r.released.Broadcast()
	}
	r.mu.Unlock()
}

func (r *regions) close() {
	r.mu.Lock()
	r.space.close()
	r.mu.Unlock()
}

// removeHosts removes the memory that p has registered and not closed.
func (r *regions) removeHosts(p *primary) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = slices.DeleteFunc(r.all, func(a *region) bool { return a.kind == ofHost && a.primary == p })
}
