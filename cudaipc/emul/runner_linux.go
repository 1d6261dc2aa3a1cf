package emul

import (
	"math"
	"math/bits"
	"runtime"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// A stream checks a word waitSpins times, and then with pauses.
const (
	waitSpins = 100
	minPause  = 20 * time.Microsecond
	maxPause  = time.Millisecond
)

// prepare checks an operation as far as possible before it runs.
func (s *stream) prepare(call string, op cudaipc.Op) (task, error) {
	uuid := s.primary.gpu.uuid
	invalid := func(reason string, args ...any) (task, error) {
		return task{}, invalidValue.with(call, uuid, cudaipc.ErrInvalid, reason, args...)
	}
	switch op.Kind {
	case cudaipc.OpCopy:
		if op.Bytes < 0 {
			return invalid("copy of %d bytes", op.Bytes)
		}
	case cudaipc.OpCopy2D:
		if op.Bytes < 0 || op.Rows < 0 || op.DstPitch < op.Bytes || op.SrcPitch < op.Bytes {
			return invalid("%d rows of %d bytes, %d and %d apart", op.Rows, op.Bytes, op.DstPitch, op.SrcPitch)
		}
		if reach(op.DstPitch, op) < 0 || reach(op.SrcPitch, op) < 0 {
			return invalid("%d rows, %d and %d apart, do not fit any memory", op.Rows, op.DstPitch, op.SrcPitch)
		}
	case cudaipc.OpWrite, cudaipc.OpWait:
		if why, missing := s.primary.driver.opts.Missing["Words"]; missing {
			return task{}, notSupported.with(call, uuid, cudaipc.ErrUnsupported, "%s", why)
		}
		if r := s.primary.driver.regions.find(op.Word.Dev); r == nil || r.kind != ofHost || op.Word.Dev%4 != 0 {
			return invalid("%#x is no word in registered memory", op.Word.Dev)
		}
	case cudaipc.OpRecord, cudaipc.OpAwait:
		return s.prepareEvent(call, op)
	default:
		return invalid("operation %d", op.Kind)
	}
	return task{op: op}, nil
}

func (s *stream) prepareEvent(call string, op cudaipc.Op) (task, error) {
	uuid := s.primary.gpu.uuid
	e, ours := op.Event.(*event)
	if !ours || e.primary.driver != s.primary.driver {
		return task{}, invalidHandle.with(call, uuid, cudaipc.ErrInvalid, "an event of another driver, or none")
	}
	if op.Kind == cudaipc.OpRecord && e.primary != s.primary {
		return task{}, invalidHandle.with(call, uuid, cudaipc.ErrInvalid, "an event of another device")
	}
	at, ok := e.current()
	if ok && op.Kind == cudaipc.OpRecord {
		at = e.record()
		ok = at != nil
	}
	if !ok {
		return task{}, invalidHandle.with(call, uuid, cudaipc.ErrClosed, "the event is")
	}
	return task{op: op, at: at}, nil
}

// reach returns the bytes that the rows of a copy span, or a negative number on overflow.
func reach(pitch int64, op cudaipc.Op) int64 {
	if op.Rows == 0 {
		return 0
	}
	over, span := bits.Mul64(uint64(pitch), uint64(op.Rows-1))
	if over != 0 || span > math.MaxInt64-uint64(op.Bytes) {
		return -1
	}
	return int64(span) + op.Bytes
}

// runner runs operations on a stream's goroutine.
type runner struct {
	*stream
	timer *time.Timer
}

func newRunner(s *stream) *runner {
	t := time.NewTimer(time.Hour)
	t.Stop()
	return &runner{stream: s, timer: t}
}

// do runs an operation and returns the error that ends the device. When the device is halted it may
// return without an effect.
func (r *runner) do(t task) *cudaipc.Error {
	o := &r.primary.driver.opts
	step := Step{Op: t.op, Device: r.primary.gpu.uuid, Stream: r.number}
	r.sleep(o.duration(step))
	if r.primary.isHalted() {
		return nil
	}
	if o.Fault != nil {
		if err := o.Fault(step); err != nil {
			return sticky(kindName(t.op.Kind), step.Device, err)
		}
	}
	switch t.op.Kind {
	case cudaipc.OpCopy:
		op := t.op
		op.Rows = 1
		return r.copy(op)
	case cudaipc.OpCopy2D:
		return r.copy(t.op)
	case cudaipc.OpWrite:
		return r.withWord(t.op, func() { wordAt(uintptr(t.op.Word.Dev)).Store(t.op.Value) })
	case cudaipc.OpWait:
		return r.wait(t.op)
	case cudaipc.OpAwait:
		return r.await(t.at)
	case cudaipc.OpRecord:
	}
	return nil
}

// duration returns the time of a step.
func (o *Options) duration(step Step) (d time.Duration) {
	if o.Delay != nil {
		d = o.Delay(step)
	}
	if o.BytesPerSecond > 0 {
		bytes := float64(step.Bytes)
		if step.Kind == cudaipc.OpCopy2D {
			bytes *= float64(step.Rows)
		}
		d += time.Duration(bytes / float64(o.BytesPerSecond) * float64(time.Second))
	}
	return d
}

// sleep waits for d, or until the device is halted.
func (r *runner) sleep(d time.Duration) {
	if d <= 0 {
		return
	}
	r.timer.Reset(d)
	select {
	case <-r.timer.C:
	case <-r.primary.halted:
		r.timer.Stop()
	}
}

// copy copies rows.
func (r *runner) copy(op cudaipc.Op) *cudaipc.Error {
	if op.Bytes == 0 || op.Rows == 0 {
		return nil
	}
	all := r.primary.driver.regions
	src, ok := all.acquire(r.primary, op.Src, reach(op.SrcPitch, op), read)
	if !ok {
		return r.illegal(op.Kind, op.Src)
	}
	defer all.release(src)
	dst, ok := all.acquire(r.primary, op.Dst, reach(op.DstPitch, op), write)
	if !ok {
		return r.illegal(op.Kind, op.Dst)
	}
	defer all.release(dst)
	bad := touch(func() {
		for i := range op.Rows {
			move(op.Dst+cudaipc.Ptr(i*op.DstPitch), op.Src+cudaipc.Ptr(i*op.SrcPitch), op.Bytes)
		}
	})
	if bad != nil {
		return r.illegal(op.Kind, cudaipc.Ptr(bad.address))
	}
	return nil
}

// withWord calls f while the word of an operation is mapped.
func (r *runner) withWord(op cudaipc.Op, f func()) *cudaipc.Error {
	how := write
	if op.Kind == cudaipc.OpWait {
		how = read
	}
	all := r.primary.driver.regions
	in, ok := all.acquire(r.primary, op.Word.Dev, 4, how)
	if !ok || in == nil {
		all.release(in)
		return r.illegal(op.Kind, op.Word.Dev)
	}
	defer all.release(in)
	bad := touch(func() {
		peek(op.Word.Dev)
		f()
	})
	if bad != nil {
		return r.illegal(op.Kind, op.Word.Dev)
	}
	return nil
}

// wait checks a word until it is reached, with growing pauses. The word may belong to another
// process, so there is no event to wait for.
func (r *runner) wait(op cudaipc.Op) *cudaipc.Error {
	nap := minPause
	for spins := 0; !r.primary.isHalted(); spins++ {
		reached := false
		bad := r.withWord(op, func() { reached = cudaipc.Reached(wordAt(uintptr(op.Word.Dev)).Load(), op.Value) })
		if bad != nil || reached {
			return bad
		}
		if spins < waitSpins {
			runtime.Gosched()
			continue
		}
		r.sleep(nap)
		nap = min(2*nap, maxPause)
	}
	return nil
}

// await waits for a point of another stream. If the point was never reached, because its device has
// failed, this device fails too: the operations before the point did not happen.
func (r *runner) await(at *point) *cudaipc.Error {
	if at == nil {
		return nil
	}
	select {
	case <-at.passed:
		return at.failed
	case <-r.primary.halted:
		return nil
	}
}

func (r *runner) illegal(kind cudaipc.OpKind, at cudaipc.Ptr) *cudaipc.Error {
	return illegalAddress.with(kindName(kind), r.primary.gpu.uuid, cudaipc.ErrSticky, "access to %#x", at)
}

func kindName(kind cudaipc.OpKind) string {
	switch kind {
	case cudaipc.OpCopy:
		return "OpCopy"
	case cudaipc.OpCopy2D:
		return "OpCopy2D"
	case cudaipc.OpWrite:
		return "OpWrite"
	case cudaipc.OpWait:
		return "OpWait"
	case cudaipc.OpRecord:
		return "OpRecord"
	default:
		return "OpAwait"
	}
}
