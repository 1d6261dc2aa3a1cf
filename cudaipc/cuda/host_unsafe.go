//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// hostMemory is memory of this process that is registered with the device.
type hostMemory struct {
	g      *gpu
	mem    []byte
	dev    cudaipc.Ptr
	closed atomic.Bool
}

// registerHost pins memory, and gets its device address.
func (g *gpu) registerHost(mem []byte, readOnly bool) (*hostMemory, error) {
	host := cudaipc.HostPtr(mem)
	if len(mem) == 0 || uint64(host)%uint64(os.Getpagesize()) != 0 {
		return nil, g.invalid(symMemHostRegister, "%d bytes at %#x: memory for a GPU begins on a page boundary", len(mem), uint64(host))
	}
	flags := uintptr(hostPortable | hostDeviceMap)
	if readOnly {
		flags |= hostReadOnly
	}
	m := &hostMemory{g: g, mem: mem}
	forget := func(c *caller) { c.call(symMemHostUnregister, uintptr(host)) }
	return m, g.doMapping(func(c *caller) error {
		if got := c.call(symMemHostRegister, uintptr(host), uintptr(len(mem)), flags); got != success {
			return asUnsupported(g.fail(c, symMemHostRegister, got), got, readOnly)
		}
		if err := g.must(c, symMemHostGetDevicePointer, address(&c.word), uintptr(host), 0); err != nil {
			forget(c)
			return err
		}
		m.dev = cudaipc.Ptr(c.word)
		return nil
	}, func() {
		g.hosts++
		g.ranges.add(m.dev, int64(len(mem)))
		if m.dev != host {
			g.ranges.add(host, int64(len(mem)))
		}
	}, forget)
}

// asUnsupported makes the driver's various errors for read-only memory an ErrUnsupported: the
// driver would have to pin the pages for writing, and may not.
func asUnsupported(err error, got code, readOnly bool) error {
	switch got {
	case invalidValue, operatingSystem, notPermitted, notSupported:
		var e *cudaipc.Error
		if readOnly && errors.As(err, &e) {
			e.Err = cudaipc.ErrUnsupported
		}
	default:
	}
	return err
}

// Ptr implements cudaipc.HostMemory.
func (m *hostMemory) Ptr(offset int64) cudaipc.Ptr {
	if offset < 0 || offset > int64(len(m.mem)) {
		panic(fmt.Sprintf("cuda: offset %d in host memory of %d bytes", offset, len(m.mem)))
	}
	return m.dev + cudaipc.Ptr(offset)
}

// Word implements cudaipc.HostMemory.
func (m *hostMemory) Word(offset int64) cudaipc.Word {
	if offset%4 != 0 || offset < 0 || offset > int64(len(m.mem))-4 {
		panic(fmt.Sprintf("cuda: a word at offset %d in host memory of %d bytes", offset, len(m.mem)))
	}
	return cudaipc.Word{Host: (*atomic.Uint32)(unsafe.Pointer(&m.mem[offset])), Dev: m.Ptr(offset)}
}

// Close implements cudaipc.HostMemory. It waits for the operations that were submitted before.
func (m *hostMemory) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	g := m.g
	settled := g.synchronize()
	host := cudaipc.HostPtr(m.mem)
	return g.doFreeing(func(*caller) error {
		g.hosts--
		g.ranges.remove(m.dev)
		if m.dev != host {
			g.ranges.remove(host)
		}
		return nil
	}, func(c *caller) error {
		if err := g.must(c, symMemHostUnregister, uintptr(host)); err != nil {
			return err
		}
		return settled
	})
}
