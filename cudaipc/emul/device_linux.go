package emul

import (
	"crypto/rand"
	"encoding/hex"
	"os"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// ownHandles maps the nonces of this process's allocations to their drivers, until they are freed.
var ownHandles sync.Map

// device is one reference to a GPU.
type device struct {
	primary *primary
	caps    cudaipc.Caps
	closed  atomic.Bool
}

// Caps implements [cudaipc.Device].
func (v *device) Caps() cudaipc.Caps { return v.caps }

// check returns the reason why a call cannot be made, or nil.
func (v *device) check(call string) error {
	if v.closed.Load() {
		return contextDestroyed.with(call, v.caps.Device, cudaipc.ErrClosed, "the device is")
	}
	if err := v.primary.failure(call); err != nil {
		return err
	}
	return v.primary.driver.refused(call)
}

func (v *device) invalid(call, reason string, args ...any) error {
	return invalidValue.with(call, v.caps.Device, cudaipc.ErrInvalid, reason, args...)
}

// missing returns the error of a missing feature, or nil.
func (v *device) missing(call, field string) error {
	why, missing := v.caps.Why[field]
	if !missing {
		return nil
	}
	return notSupported.with(call, v.caps.Device, cudaipc.ErrUnsupported, "%s", why)
}

// NewArena implements [cudaipc.Device].
func (v *device) NewArena(sizeBytes int64) (cudaipc.Arena, error) {
	const call = "NewArena"
	if err := v.check(call); err != nil {
		return nil, err
	}
	if err := v.missing(call, "Arenas"); err != nil {
		return nil, err
	}
	device := v.caps.Device
	m, err := v.make(call, ofArena, sizeBytes, v.caps.GranularityBytes, arenaName+hex.EncodeToString(device[:]), handleInfo{})
	if err != nil {
		return nil, err
	}
	return newArena(v.primary, m), nil
}

// Alloc implements [cudaipc.Device].
func (v *device) Alloc(sizeBytes int64) (cudaipc.Ptr, error) {
	const call = "Alloc"
	if err := v.check(call); err != nil {
		return 0, err
	}
	h := handleInfo{pid: uint32(os.Getpid()), device: v.caps.Device, namespace: pidNamespace()}
	_, _ = rand.Read(h.nonce[:])
	m, err := v.make(call, ofAllocation, sizeBytes, int64(pageBytes), h.name(), h)
	if err != nil {
		return 0, err
	}
	return cudaipc.Ptr(m.base), nil
}

// make makes memory of the device, with a descriptor under a name.
func (v *device) make(call string, kind regionKind, sizeBytes, granularityBytes int64, name string, h handleInfo) (*memory, error) {
	if sizeBytes <= 0 {
		return nil, v.invalid(call, "%d bytes", sizeBytes)
	}
	total := v.caps.TotalBytes
	bytes := int64(alignUp(uintptr(sizeBytes), uintptr(granularityBytes)))
	if sizeBytes > total || !v.primary.gpu.charge(bytes, total) {
		return nil, outOfMemory.with(call, v.caps.Device, cudaipc.ErrOutOfMemory, "%d bytes of %d", sizeBytes, total)
	}
	m := &memory{fd: -1, charged: bytes}
	fd, err := newMemfd(name, bytes)
	if err == nil {
		m.fd = fd
		m.region, err = v.primary.driver.regions.mapDevice(v.primary, kind, fd, bytes, granularityBytes)
	}
	if err != nil {
		if m.fd >= 0 {
			unix.Close(m.fd)
		}
		v.primary.gpu.refund(bytes)
		return nil, outOfMemory.with(call, v.caps.Device, cudaipc.ErrOutOfMemory, "%v", err)
	}
	if kind == ofAllocation {
		h.fd, h.bytes = uint32(fd), bytes
		m.handle = h
		ownHandles.Store(h.nonce, v.primary.driver)
	}
	return m, v.primary.track(call, m)
}

// Err implements [cudaipc.Device].
func (v *device) Err() error { return v.primary.gpu.failed("Err") }

// Close implements [cudaipc.Device]. The last one of a GPU releases the objects that are left on
// it.
func (v *device) Close() error {
	if v.closed.Swap(true) {
		return nil
	}
	if !v.primary.isClosed() {
		v.primary.gpu.close(false)
	}
	return v.primary.gpu.failed("Device.Close")
}
