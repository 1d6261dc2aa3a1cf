//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"strconv"
	"unsafe"

	"github.com/ebitengine/purego"
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// location is CUmemLocation.
type location struct {
	kind int32
	id   int32
}

// allocation is CUmemAllocationProp.
type allocation struct {
	kind     int32
	handles  int32
	where    location
	win32    uint64
	compress uint8
	rdma     uint8
	usage    uint16
	reserved [4]uint8
}

// access is CUmemAccessDesc.
type access struct {
	where location
	flags int32
}

// plane is one side of a CUDA_MEMCPY2D.
type plane struct {
	x, y   uint64
	kind   uint32
	_      uint32
	host   uint64
	device uint64
	array  uint64
	pitch  uint64
}

// rectangle is CUDA_MEMCPY2D.
type rectangle struct {
	src, dst     plane
	width, lines uint64
}

const (
	maxPeers = 31 // without the device itself
	maxArgs  = 16 // of a call; onStack needs 14
)

// frame holds the structures and results of calls. It lies in its own page outside of Go's heap, so
// that its addresses are plain numbers which are valid while the caller has it.
type frame struct {
	word   uint64 // a handle, an address or a size
	second uint64
	number int32
	answer int32
	name   *byte // a C string of the library's own
	text   [256]byte
	uuid   cudaipc.UUID
	handle cudaipc.Handle
	memory allocation
	reach  [1 + maxPeers]access
	plot   rectangle
}

// caller makes calls, one at a time.
type caller struct {
	addresses *[symbolCount]uintptr
	page      []byte
	*frame
	args [maxArgs]uintptr
	mode int32 // the thread's capture mode before the calls
}

func newCaller(addresses *[symbolCount]uintptr) (*caller, error) {
	page, err := unix.Mmap(-1, 0, int(unsafe.Sizeof(frame{})), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("memory for calls of CUDA: %w", err)
	}
	return &caller{addresses: addresses, page: page, frame: (*frame)(unsafe.Pointer(unsafe.SliceData(page)))}, nil
}

// free unmaps the page. The caller cannot be used after it.
func (c *caller) free() {
	c.frame = nil
	_ = unix.Munmap(c.page)
}

// call makes a call. It allocates nothing: the arguments are copied into c.args.
func (c *caller) call(s symbol, args ...uintptr) code {
	fn := c.addresses[s]
	if fn == 0 {
		return missing
	}
	return c.invoke(fn, args...)
}

func (c *caller) invoke(fn uintptr, args ...uintptr) code {
	n := copy(c.args[:], args)
	result, _, _ := purego.SyscallN(fn, c.args[:n]...)
	return code(int32(uint32(result)))
}

// address returns a field's address for C.
func address[T any](field *T) uintptr { return uintptr(unsafe.Pointer(field)) }

// setText puts a C string into the frame. Longer text is cut, which no name here is.
func (c *caller) setText(s string) uintptr {
	n := copy(c.text[:len(c.text)-1], s)
	c.text[n] = 0
	return address(&c.text)
}

func (c *caller) getText() string { return unix.ByteSliceToString(c.text[:]) }

// errorName returns the driver's name of a code.
func (c *caller) errorName(of code) string {
	c.name = nil
	if c.call(symGetErrorName, uintptr(of), address(&c.name)) != success || c.name == nil {
		return "CUDA_ERROR_" + strconv.Itoa(int(of))
	}
	return unix.BytePtrToString(c.name)
}
