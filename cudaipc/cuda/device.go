//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"sync"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// device implements cudaipc.Device: one reference to a GPU.
type device struct {
	driver *driver
	ref    *gpuRef
	once   sync.Once
	closed atomic.Bool
}

// gpu returns the GPU for a call, or the error of a call that cannot succeed. A feature is named by
// its field in cudaipc.Caps.
func (d *device) gpu(s symbol, feature string) (*gpu, error) {
	g := d.ref.gpu
	if d.closed.Load() {
		return nil, g.closed(s, contextGone, "GPU")
	}
	if err := g.failed(); err != nil {
		return nil, err
	}
	if why, ok := g.caps.Why[feature]; ok {
		return nil, g.unsupported(s, why)
	}
	return g, nil
}

// Caps implements cudaipc.Device.
func (d *device) Caps() cudaipc.Caps { return d.ref.caps }

// NewArena implements cudaipc.Device.
func (d *device) NewArena(sizeBytes int64) (cudaipc.Arena, error) {
	g, err := d.gpu(symMemCreate, "Arenas")
	if err != nil {
		return nil, err
	}
	return arenaOrNil(g.newArena(sizeBytes))
}

// ImportArena implements cudaipc.Device.
func (d *device) ImportArena(fd int, sizeBytes int64) (cudaipc.Arena, error) {
	g, err := d.gpu(symMemImportFromShareableHandle, "Arenas")
	if err != nil {
		return nil, err
	}
	return arenaOrNil(g.importArena(fd, sizeBytes))
}

// arenaOrNil converts a nil pointer to a nil interface.
func arenaOrNil(a *arena, err error) (cudaipc.Arena, error) {
	if err != nil {
		return nil, err
	}
	return a, nil
}

// Alloc implements cudaipc.Device.
func (d *device) Alloc(sizeBytes int64) (cudaipc.Ptr, error) {
	g, err := d.gpu(symMemAlloc, "")
	if err != nil {
		return 0, err
	}
	return g.alloc(sizeBytes)
}

// Free implements cudaipc.Device.
func (d *device) Free(p cudaipc.Ptr) error {
	g, err := d.gpu(symMemFree, "")
	if err != nil {
		return err
	}
	return g.freeMemory(p)
}

// Export implements cudaipc.Device.
func (d *device) Export(p cudaipc.Ptr) (cudaipc.Handle, int64, error) {
	g, err := d.gpu(symIpcGetMemHandle, "Handles")
	if err != nil {
		return cudaipc.Handle{}, 0, err
	}
	return g.exportHandle(p)
}

// Import implements cudaipc.Device.
func (d *device) Import(h cudaipc.Handle) (base cudaipc.Ptr, sizeBytes int64, err error) {
	g, err := d.gpu(symIpcOpenMemHandle, "Handles")
	if err != nil {
		return 0, 0, err
	}
	return g.importHandle(h)
}

// Unimport implements cudaipc.Device.
func (d *device) Unimport(base cudaipc.Ptr) error {
	g, err := d.gpu(symIpcCloseMemHandle, "Handles")
	if err != nil {
		return err
	}
	return g.unimport(base)
}

// RegisterHost implements cudaipc.Device.
func (d *device) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	feature := "RegisterHost"
	if readOnly {
		feature = "RegisterReadOnly"
	}
	g, err := d.gpu(symMemHostRegister, feature)
	if err != nil {
		return nil, err
	}
	m, err := g.registerHost(mem, readOnly)
	if err != nil {
		return nil, err
	}
	return m, nil
}

// NewStream implements cudaipc.Device.
func (d *device) NewStream() (cudaipc.Stream, error) {
	g, err := d.gpu(symStreamCreate, "")
	if err != nil {
		return nil, err
	}
	s, err := g.newStream()
	if err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream implements cudaipc.Device.
func (d *device) WrapStream(raw uintptr) (cudaipc.Stream, error) {
	g, err := d.gpu(symEventRecord, "")
	if err != nil {
		return nil, err
	}
	s, err := g.wrapStream(raw)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewEvent implements cudaipc.Device.
func (d *device) NewEvent() (cudaipc.Event, error) {
	g, err := d.gpu(symEventCreate, "")
	if err != nil {
		return nil, err
	}
	e, err := g.newEvent()
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Err implements cudaipc.Device. It polls the driver, which reports a failure of the device at the
// next call.
func (d *device) Err() error {
	g := d.ref.gpu
	if !d.closed.Load() && g.failed() == nil {
		g.poll()
	}
	return g.failed()
}

// Close implements cudaipc.Device. The last one releases the context.
func (d *device) Close() error {
	d.once.Do(func() {
		d.closed.Store(true)
		d.driver.mu.Lock()
		defer d.driver.mu.Unlock()
		if !d.driver.closed {
			d.driver.release(d.ref)
		}
	})
	return nil
}
