//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"math"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// submit queues operations. It stops before a copy of plain host memory while the stream has work:
// the driver would wait for that work within the call, and so would all other calls. The caller
// waits for point, without the lock, and submits the rest.
func (g *gpu) submit(c *caller, s *stream, ops []cudaipc.Op) (queued int, point uintptr, err error) {
	if s.closed.Load() {
		return 0, 0, g.closed(symStreamQuery, invalidHandle, "stream")
	}
	for i := range ops {
		op := &ops[i]
		if g.isPlainCopy(c, op) {
			switch got := c.call(symStreamQuery, s.raw); got {
			case success:
			case notReady:
				point, err = g.recordRaw(c, s.raw)
				return i, point, err
			default:
				return i, 0, g.fail(c, symStreamQuery, got)
			}
		}
		if err := g.apply(c, s.raw, op); err != nil {
			return i, 0, err
		}
	}
	return len(ops), 0, nil
}

func (g *gpu) isPlainCopy(c *caller, op *cudaipc.Op) bool {
	switch op.Kind {
	case cudaipc.OpCopy, cudaipc.OpCopy2D:
		return op.Bytes > 0 && (!g.isKnown(c, op.Dst) || !g.isKnown(c, op.Src))
	default:
		return false
	}
}

// isKnown reports whether CUDA has made or pinned the memory at an address: all memory but plain
// host memory.
func (g *gpu) isKnown(c *caller, p cudaipc.Ptr) bool {
	if g.ranges.contain(p) {
		return true
	}
	return c.call(symPointerGetAttribute, address(&c.number), pointerMemoryType, uintptr(p)) == success
}

func (g *gpu) apply(c *caller, stream uintptr, op *cudaipc.Op) error {
	switch op.Kind {
	case cudaipc.OpCopy:
		return g.copy(c, stream, op)
	case cudaipc.OpCopy2D:
		return g.copy2D(c, stream, op)
	case cudaipc.OpWrite:
		return g.word(c, symStreamWriteValue32, stream, op, writeValueDefault)
	case cudaipc.OpWait:
		return g.word(c, symStreamWaitValue32, stream, op, waitValueGEQ)
	case cudaipc.OpRecord:
		e, err := g.event(symEventRecord, op)
		if err != nil {
			return err
		}
		return g.must(c, symEventRecord, e.raw, stream)
	case cudaipc.OpAwait:
		e, err := g.event(symStreamWaitEvent, op)
		if err != nil {
			return err
		}
		return g.must(c, symStreamWaitEvent, stream, e.raw, 0)
	default:
		return g.invalid(symStreamQuery, "operation %d does not exist", op.Kind)
	}
}

// event returns the event of an operation. Events of other GPUs of this driver are allowed.
func (g *gpu) event(s symbol, op *cudaipc.Op) (*event, error) {
	e, ok := op.Event.(*event)
	switch {
	case !ok || e == nil || e.g.lib != g.lib:
		return nil, g.invalid(s, "an event of this driver is wanted, not %T", op.Event)
	case e.closed.Load():
		return nil, g.closed(s, invalidHandle, "event")
	}
	return e, nil
}

func (g *gpu) word(c *caller, s symbol, stream uintptr, op *cudaipc.Op, flags uintptr) error {
	if why, ok := g.caps.Why["Words"]; ok {
		return g.unsupported(s, why)
	}
	// An access to an invalid address would end the GPU.
	if op.Word.Dev%4 != 0 || !g.isKnown(c, op.Word.Dev) {
		return g.invalid(s, "no word is at %#x", uint64(op.Word.Dev))
	}
	return g.must(c, s, stream, uintptr(op.Word.Dev), uintptr(op.Value), flags)
}

// copy lets CUDA find the direction by the addresses, which works on all 64-bit Linux systems.
func (g *gpu) copy(c *caller, stream uintptr, op *cudaipc.Op) error {
	switch {
	case op.Bytes < 0 || op.Bytes > 0 && (op.Dst == 0 || op.Src == 0):
		return g.invalid(symMemcpyAsync, "a copy of %d bytes from %#x to %#x", op.Bytes, uint64(op.Src), uint64(op.Dst))
	case op.Bytes == 0:
		return nil
	}
	return g.must(c, symMemcpyAsync, uintptr(op.Dst), uintptr(op.Src), uintptr(op.Bytes), stream)
}

// copy2D makes one call for all rows. The driver may refuse foreign pitches between two ranges of
// one device, and cuMemcpy2DUnaligned, which accepts any, is not asynchronous: then the rows are
// copied one by one.
func (g *gpu) copy2D(c *caller, stream uintptr, op *cudaipc.Op) error {
	switch {
	case op.Bytes < 0 || op.Rows < 0 || op.Rows > 1 && (!fits(op, op.DstPitch) || !fits(op, op.SrcPitch)):
		return g.invalid(symMemcpy2DAsync, "a copy of %d rows of %d bytes, %d and %d apart", op.Rows, op.Bytes, op.SrcPitch, op.DstPitch)
	case op.Rows == 0:
		return nil
	case op.Rows == 1 || op.Bytes == 0:
		return g.copy(c, stream, op)
	case op.DstPitch == op.Bytes && op.SrcPitch == op.Bytes:
		whole := cudaipc.Op{Dst: op.Dst, Src: op.Src, Bytes: op.Rows * op.Bytes}
		return g.copy(c, stream, &whole)
	case op.Dst == 0 || op.Src == 0:
		return g.invalid(symMemcpy2DAsync, "a copy from %#x to %#x", uint64(op.Src), uint64(op.Dst))
	}
	c.plot = rectangle{
		src: g.planeOf(c, op.Src, op.SrcPitch), dst: g.planeOf(c, op.Dst, op.DstPitch),
		width: uint64(op.Bytes), lines: uint64(op.Rows),
	}
	got := c.call(symMemcpy2DAsync, address(&c.plot), stream)
	if got == invalidValue {
		return g.copyRows(c, stream, op)
	}
	if got != success {
		return g.fail(c, symMemcpy2DAsync, got)
	}
	return nil
}

// fits reports whether rows with a pitch neither overlap, nor exceed the address space.
func fits(op *cudaipc.Op, pitch int64) bool {
	return pitch >= op.Bytes && (pitch == 0 || op.Rows <= math.MaxInt64/pitch)
}

func (g *gpu) planeOf(c *caller, p cudaipc.Ptr, pitch int64) plane {
	if g.isKnown(c, p) {
		return plane{kind: memoryUnified, device: uint64(p), pitch: uint64(pitch)}
	}
	return plane{kind: memoryHost, host: uint64(p), pitch: uint64(pitch)}
}

func (g *gpu) copyRows(c *caller, stream uintptr, op *cudaipc.Op) error {
	dst, src := uintptr(op.Dst), uintptr(op.Src)
	for range op.Rows {
		if err := g.must(c, symMemcpyAsync, dst, src, uintptr(op.Bytes), stream); err != nil {
			return err
		}
		dst += uintptr(op.DstPitch)
		src += uintptr(op.SrcPitch)
	}
	return nil
}
