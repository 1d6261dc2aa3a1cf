//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"sync"

	"github.com/ebitengine/purego"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// library is the driver, loaded and started.
type library struct {
	path      string
	addresses [symbolCount]uintptr
	version   int

	mu    sync.Mutex // held during calls without a context
	plain *caller
}

// load loads a library and initializes it. It is never unloaded: it keeps threads, and other
// packages of the process may use it too.
func load(path string) (*library, error) {
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, fmt.Errorf("%w: %s cannot be loaded (%w); install NVIDIA's driver, or start the container with its runtime", cudaipc.ErrNoDriver, path, err)
	}
	l := &library{path: path}
	if l.plain, err = newCaller(&l.addresses); err != nil {
		return nil, err
	}
	if err := l.start(handle); err != nil {
		l.plain.free()
		return nil, err
	}
	return l, nil
}

func (l *library) start(handle uintptr) error {
	l.resolve(func(name string) uintptr {
		address, err := purego.Dlsym(handle, name)
		if err != nil {
			return 0
		}
		return address
	})
	c := l.plain
	if got := c.call(symDriverGetVersion, address(&c.number)); got == success {
		l.version = int(c.number)
	}
	l.dropOlder()
	if s, ok := l.missingSymbol(forAll); ok {
		return fmt.Errorf("%w: %s, of CUDA %s, has no %v, which came with CUDA %s; install a newer driver",
			cudaipc.ErrDriverTooOld, l.path, release(l.version), s, release(specs[s].version))
	}
	if got := c.call(symInit, 0); got != success {
		return fmt.Errorf("%s does not start: %w; see whether nvidia-smi runs here, and look at CUDA_VISIBLE_DEVICES, and at what the container was given",
			l.path, c.failure(symInit, got, cudaipc.UUID{}))
	}
	return nil
}

// dropOlder removes functions whose signature is newer than the driver: the driver's function of
// that name has an older signature.
func (l *library) dropOlder() {
	for s := range specs {
		if specs[s].version > l.version {
			l.addresses[s] = 0
		}
	}
}

// resolve finds the symbols. cuGetProcAddress is asked for the version of the signature that is
// called, so that a newer library returns the function with that signature; the exported name is
// used where cuGetProcAddress is missing, or does not know the function.
func (l *library) resolve(exported func(name string) uintptr) {
	c := l.plain
	ask2, ask1 := exported("cuGetProcAddress_v2"), exported("cuGetProcAddress")
	for s := range specs {
		spec := &specs[s]
		c.word = 0
		var got code
		switch {
		case ask2 != 0:
			got = c.invoke(ask2, c.setText(spec.name), address(&c.word), uintptr(spec.version), procAddressDefault, address(&c.answer))
		case ask1 != 0:
			got = c.invoke(ask1, c.setText(spec.name), address(&c.word), uintptr(spec.version), procAddressDefault)
		}
		l.addresses[s] = uintptr(c.word)
		if got != success || c.word == 0 {
			l.addresses[s] = exported(spec.export)
		}
	}
}

// missingSymbol returns the first symbol of a feature that the library does not have.
func (l *library) missingSymbol(f feature) (symbol, bool) {
	for s := range symbolCount {
		if specs[s].feature == f && l.addresses[s] == 0 {
			return s, true
		}
	}
	return 0, false
}

// card describes a device without a context.
type card struct {
	number int32 // CUdevice, also the id in a location
	uuid   cudaipc.UUID
	name   string
	bytes  int64
}

// cards lists the devices that this process may use, in the driver's order.
func (l *library) cards() ([]card, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.plain
	if got := c.call(symDeviceGetCount, address(&c.number)); got != success {
		return nil, c.failure(symDeviceGetCount, got, cudaipc.UUID{})
	}
	all := make([]card, c.number)
	for i := range all {
		if err := c.card(i, &all[i]); err != nil {
			return nil, err
		}
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the driver sees none; look at CUDA_VISIBLE_DEVICES, and at what the container was given", cudaipc.ErrNoDevice)
	}
	return all, nil
}

func (c *caller) card(ordinal int, into *card) error {
	if got := c.call(symDeviceGet, address(&c.number), uintptr(ordinal)); got != success {
		return c.failure(symDeviceGet, got, cudaipc.UUID{})
	}
	into.number = c.number
	number := uintptr(c.number)
	if got := c.call(symDeviceGetUUID, address(&c.uuid), number); got != success {
		return c.failure(symDeviceGetUUID, got, cudaipc.UUID{})
	}
	into.uuid = c.uuid
	if got := c.call(symDeviceGetName, address(&c.text), uintptr(len(c.text)), number); got != success {
		return c.failure(symDeviceGetName, got, into.uuid)
	}
	into.name = c.getText()
	if got := c.call(symDeviceTotalMem, address(&c.word), number); got != success {
		return c.failure(symDeviceTotalMem, got, into.uuid)
	}
	into.bytes = int64(c.word)
	return nil
}

// reaches reports whether a device can use the memory of another one.
func (l *library) reaches(from, to int32) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.plain
	got := c.call(symDeviceCanAccessPeer, address(&c.number), uintptr(from), uintptr(to))
	return got == success && c.number == 1
}

// attribute returns an attribute of a device, or 0 if the driver does not know it.
func (l *library) attribute(attribute int, device int32) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.plain
	if got := c.call(symDeviceGetAttribute, address(&c.number), uintptr(attribute), uintptr(device)); got != success {
		return 0
	}
	return int(c.number)
}

// close frees the caller for calls without a context.
func (l *library) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.plain.free()
}
