//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// sentinel returns a value that differs in every byte, and for every argument.
func sentinel(i int) uint64 {
	return 0x0102030405060708 * uint64(i+1)
}

// truncated returns an argument as a callee with a parameter of so many bytes sees it.
func truncated(v uint64, bytes int32) uint64 {
	if bytes == 4 {
		// Signed arguments are shown extended.
		return uint64(uint32(v))
	}
	return v
}

// TestArgumentsArrive: each function receives its arguments in the positions of the C calling
// convention.
func TestArgumentsArrive(t *testing.T) {
	f := newFake(t)
	lib, err := load(f.path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.close()
	f.record(1)
	for s := range symbolCount {
		t.Run(s.String(), func(t *testing.T) {
			const given = 6 // the number of argument registers
			args := make([]uintptr, given)
			for i := range args {
				args[i] = uintptr(sentinel(i))
			}
			if s == symIpcOpenMemHandle {
				return // see TestHandleArrivesByValue
			}
			if got := lib.plain.call(s, args...); got != success {
				t.Fatalf("the call returned %d", got)
			}
			values, bytes := f.seen(s.String())
			if len(values) == 0 || len(values) > given {
				t.Fatalf("the callee saw %d arguments", len(values))
			}
			for i, v := range values {
				if got, want := truncated(v, bytes[i]), truncated(sentinel(i), bytes[i]); got != want {
					t.Errorf("argument %d of %d bytes is %#x, want %#x", i, bytes[i], got, want)
				}
			}
		})
	}
}

func TestHandleArrivesByValue(t *testing.T) {
	f := newFake(t)
	lib, err := load(f.path)
	if err != nil {
		t.Fatal(err)
	}
	defer lib.close()
	f.record(1)
	c := lib.plain
	want := []uint64{uint64(address(&c.word))}
	var h cudaipc.Handle
	for i := range 8 {
		want = append(want, sentinel(i))
		binary.LittleEndian.PutUint64(h[8*i:], sentinel(i))
	}
	want = append(want, ipcLazyPeerAccess)
	g := &gpu{lib: lib}
	if _, err := g.open(c, h); err != nil {
		t.Fatal(err)
	}
	got, _ := f.seen("cuIpcOpenMemHandle_v2")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestOperationsAreCalls: each operation makes its call of the driver, with the arguments in order.
func TestOperationsAreCalls(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	s, e := f.stream(dev), f.event(dev)
	const a, b, word = 0x1234567890abcd00, 0x7edcba9876543200, 0x1122334455667788
	g := dev.ref.gpu
	if err := g.do(func(*caller) error { g.ranges = spans{{a, a + 1<<50}, {b, b + 1<<50}, {word, word + 4}}; return nil }); err != nil {
		t.Fatal(err)
	}
	f.record(1)
	t.Cleanup(func() { f.record(0) })
	raw, event := uint64(s.raw), uint64(e.raw)
	for _, c := range []struct {
		name string
		op   cudaipc.Op
		call symbol
		want []uint64
	}{
		{"copy", cudaipc.Op{Kind: cudaipc.OpCopy, Dst: a, Src: b, Bytes: 1 << 33}, symMemcpyAsync, []uint64{a, b, 1 << 33, raw}},
		{"write", cudaipc.Op{Kind: cudaipc.OpWrite, Word: cudaipc.Word{Dev: word}, Value: 0xfedcba98}, symStreamWriteValue32, []uint64{raw, word, 0xfedcba98, 0}},
		{"wait", cudaipc.Op{Kind: cudaipc.OpWait, Word: cudaipc.Word{Dev: word}, Value: 0xfedcba98}, symStreamWaitValue32, []uint64{raw, word, 0xfedcba98, 0}},
		{"record", cudaipc.Op{Kind: cudaipc.OpRecord, Event: e}, symEventRecord, []uint64{event, raw}},
		{"await", cudaipc.Op{Kind: cudaipc.OpAwait, Event: e}, symStreamWaitEvent, []uint64{raw, event, 0}},
		{
			"rows without a gap",
			cudaipc.Op{Kind: cudaipc.OpCopy2D, Dst: a, Src: b, Bytes: 8, Rows: 4, DstPitch: 8, SrcPitch: 8},
			symMemcpyAsync,
			[]uint64{a, b, 32, raw},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := f.count(c.call.String())
			if err := s.Submit(c.op); err != nil {
				t.Fatal(err)
			}
			if n := f.count(c.call.String()) - before; n != 1 {
				t.Errorf("%d calls of %v", n, c.call)
			}
			got, _ := f.seen(c.call.String())
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestBadWordsAreRefused: an invalid word never reaches the driver.
func TestBadWordsAreRefused(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	s, mem := f.stream(dev), pages(t, 4096)
	before := f.count("cuStreamWriteValue32_v2")
	for _, at := range []cudaipc.Ptr{0, h.Ptr(2), h.Ptr(0) + 1<<40, cudaipc.HostPtr(mem)} {
		err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: cudaipc.Word{Dev: at}, Value: 1})
		if !errors.Is(err, cudaipc.ErrInvalid) {
			t.Errorf("a word at %#x: %v", uint64(at), err)
		}
	}
	if n := f.count("cuStreamWriteValue32_v2"); n != before {
		t.Errorf("%d calls of the driver", n-before)
	}
}

// TestRowsOneByOne: if the driver refuses a pitch, the rows are copied one by one.
func TestRowsOneByOne(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	mem, h := f.host(dev, 4096)
	p, s := f.alloc(dev, 4096), f.stream(dev)
	for i := range mem {
		mem[i] = byte(i)
	}
	f.inject("cuMemcpy2DAsync_v2", 1, 1)
	before := f.count("cuMemcpyAsync")
	err := s.Submit(
		cudaipc.Op{Kind: cudaipc.OpCopy2D, Dst: p, Src: h.Ptr(3), Bytes: 5, Rows: 7, DstPitch: 5, SrcPitch: 16},
		cudaipc.Op{Kind: cudaipc.OpCopy, Dst: h.Ptr(2048), Src: p, Bytes: 35},
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := f.count("cuMemcpyAsync") - before; n != 8 {
		t.Errorf("%d copies, want 7 rows and 1", n)
	}
	for row := range 7 {
		for i := range 5 {
			if got, want := mem[2048+5*row+i], byte(3+16*row+i); got != want {
				t.Fatalf("row %d, byte %d: %d, want %d", row, i, got, want)
			}
		}
	}
}

// TestCallsDoNotAllocate: calls that are made for each message do not allocate.
func TestCallsDoNotAllocate(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector has pools lose what they are given")
	}
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	p, q, s, e := f.alloc(dev, 1<<16), f.alloc(dev, 1<<16), f.stream(dev), f.event(dev)
	ops := []cudaipc.Op{
		{Kind: cudaipc.OpCopy, Dst: q, Src: p, Bytes: 1 << 16},
		{Kind: cudaipc.OpCopy2D, Dst: q, Src: p, Bytes: 8, Rows: 4, DstPitch: 8, SrcPitch: 16},
		{Kind: cudaipc.OpWrite, Word: h.Word(0), Value: 1},
		{Kind: cudaipc.OpWait, Word: h.Word(0), Value: 1},
		{Kind: cudaipc.OpRecord, Event: e},
		{Kind: cudaipc.OpAwait, Event: e},
	}
	ctx := t.Context()
	for name, run := range map[string]func() error{
		"Submit":      func() error { return s.Submit(ops...) },
		"Synchronize": func() error { return s.Synchronize(ctx) },
	} {
		var failed error
		allocations := testing.AllocsPerRun(100, func() {
			if err := run(); err != nil {
				failed = err
			}
		})
		// The timer of a pause is allocated, which is not part of the calls.
		limit := map[string]float64{"Synchronize": 3}[name]
		if failed != nil || allocations > limit {
			t.Errorf("%s: %v allocations (%v)", name, allocations, failed)
		}
	}
}

// TestContextIsCurrent: calls have the context, on any thread.
func TestContextIsCurrent(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	const calls = 50
	done := make(chan error)
	for range 4 {
		go func() {
			var err error
			for i := 0; i < calls && err == nil; i++ {
				var e cudaipc.Event
				if e, err = dev.NewEvent(); err == nil {
					err = e.Close()
				}
			}
			done <- err
		}()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := dev.ref.gpu.lib.plain.call(symEventCreate, address(&dev.ref.gpu.lib.plain.word), eventDisableTiming); got != invalidContext {
		t.Errorf("without the context a call returns %d: the test sees nothing", got)
	}
}

// TestThreadStateIsRestored: after a call the caller's thread has its own context and capture mode
// again; captures of this and other threads do not see the calls.
func TestThreadStateIsRestored(t *testing.T) {
	const theirContext, theirMode = 0x1230, 1
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	s, e := f.stream(dev), f.event(dev)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	c := dev.ref.gpu.lib.plain
	exchange := func(mode int32) int32 {
		c.number = mode
		if got := c.call(symThreadExchangeCaptureMode, address(&c.number)); got != success {
			t.Fatal(got)
		}
		return c.number
	}
	pop := func() uint64 {
		if got := c.call(symCtxPopCurrent, address(&c.word)); got != success {
			t.Fatal(got)
		}
		return c.word
	}
	before := exchange(theirMode)
	defer exchange(before)
	for name, call := range map[string]func() error{
		"Submit":       func() error { return s.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: h.Word(0), Value: 1}) },
		"a bad Submit": func() error { return s.Submit(cudaipc.Op{}) },
		"Synchronize":  func() error { return s.Synchronize(t.Context()) },
		"Done":         func() error { _, err := e.Done(); return err },
		"Err":          dev.Err,
		"Alloc, Free":  func() error { p, err := dev.Alloc(1); return errors.Join(err, dev.Free(p)) },
		"a call refused": func() error {
			f.inject("cuMemAlloc_v2", 2, 1)
			_, err := dev.Alloc(1)
			return err
		},
		"a stream": func() error {
			s, err := dev.NewStream()
			if err != nil {
				return err
			}
			return s.Close()
		},
	} {
		if got := c.call(symCtxPushCurrent, theirContext); got != success {
			t.Fatal(got)
		}
		err := call()
		if bad := name == "a bad Submit" || name == "a call refused"; (err != nil) != bad {
			t.Errorf("%s: %v", name, err)
		}
		if got := pop(); got != theirContext {
			t.Errorf("%s: the thread's context is %#x", name, got)
		}
		if mode := exchange(theirMode); mode != theirMode {
			t.Errorf("%s: the thread captures by mode %d", name, mode)
		}
	}
	c.number = 0
	if got := dev.ref.gpu.do(func(c *caller) error {
		if c.number = captureRelaxed; c.call(symThreadExchangeCaptureMode, address(&c.number)) != success || c.number != captureRelaxed {
			return fmt.Errorf("mode %d", c.number)
		}
		return nil
	}); got != nil {
		t.Errorf("calls are captured: %v", got)
	}
}

// blockedFree is memory of a fake that is being freed, in a call that waits for a stream, which waits
// for a word.
type blockedFree struct {
	*fake
	driver *driver
	g      *gpu
	word   cudaipc.Word
	other  *stream
	freed  chan error
}

func newBlockedFree(t *testing.T) *blockedFree {
	t.Helper()
	f := newFake(t)
	d := f.open()
	opened, err := d.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	h, hostErr := opened.RegisterHost(pages(t, 4096), false) // closed with the driver, like the streams
	s, streamErr := opened.NewStream()
	other, otherErr := opened.NewStream()
	p, err := opened.Alloc(1)
	if err := errors.Join(err, hostErr, streamErr, otherErr); err != nil {
		t.Fatal(err)
	}
	k := &blockedFree{f, d, opened.(*device).ref.gpu, h.Word(0), other.(*stream), make(chan error, 1)}
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: k.word, Value: 1}); err != nil {
		t.Fatal(err)
	}
	before := f.count("cuMemFree_v2")
	go func() { k.freed <- k.g.free(p) }()
	for f.count("cuMemFree_v2") == before {
		runtime.Gosched()
	}
	return k
}

// TestFreeDoesNotBlockSubmit: a call that frees memory may wait in the driver for operations that
// are submitted later.
func TestFreeDoesNotBlockSubmit(t *testing.T) {
	k := newBlockedFree(t)
	submitted := make(chan error, 1)
	go func() { submitted <- k.other.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: k.word, Value: 1}) }()
	var err error
	select {
	case err = <-submitted:
	case <-time.After(10 * time.Second):
		err = errors.New("it waits for memory to be freed")
		k.word.Host.Store(1)
	}
	if err := errors.Join(err, <-k.freed); err != nil {
		t.Error(err)
	}
}

// TestCloseWaitsForFree: the context is released after the running free.
func TestCloseWaitsForFree(t *testing.T) {
	const release = "cuDevicePrimaryCtxRelease_v2"
	k := newBlockedFree(t)
	before := k.count(release)
	closed := make(chan error)
	go func() { closed <- k.driver.Close() }()
	for !errors.Is(k.other.Submit(), cudaipc.ErrClosed) {
		runtime.Gosched()
	}
	for range 1000 { // scheduling rounds in which a wrong Close would return
		runtime.Gosched()
		if n := k.count(release); n != before {
			t.Fatalf("%d contexts were released while memory of one was being freed", n-before)
		}
	}
	k.word.Host.Store(1)
	if err := errors.Join(<-k.freed, <-closed); err != nil {
		t.Error(err)
	}
	if n := k.count(release); n != before+1 {
		t.Errorf("%d contexts were released", n-before)
	}
}

// TestCallsEndWithTheDevice: calls of all goroutines fail once the device is closed.
func TestCallsEndWithTheDevice(t *testing.T) {
	f := newFake(t)
	for range 20 {
		dev, err := f.open().Open(cudaipc.UUID{})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		for range 3 {
			go func() {
				for {
					p, err := dev.Alloc(1)
					if err == nil {
						err = dev.Free(p)
					}
					if err != nil {
						ended <- err
						return
					}
				}
			}()
		}
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
		for range 3 {
			if err := <-ended; !errors.Is(err, cudaipc.ErrClosed) {
				t.Errorf("a call on a closed device: %v", err)
			}
		}
	}
}

func ExampleOpen() {
	driver, err := Open(Options{Library: "libcuda.so.of-no-machine"})
	fmt.Println(driver == nil, err != nil)
	// Output: true true
}

// BenchmarkSubmit measures the cost of calling the library; the fake does nothing.
func BenchmarkSubmit(b *testing.B) {
	f := newFake(b)
	dev := f.device()
	_, h := f.host(dev, 4096)
	s := f.stream(dev)
	f.record(1)
	b.Cleanup(func() { f.record(0) })
	for _, n := range []int{1, 16} {
		ops := make([]cudaipc.Op, n)
		for i := range ops {
			ops[i] = cudaipc.Op{Kind: cudaipc.OpWrite, Word: h.Word(0), Value: 1}
		}
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := s.Submit(ops...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkSynchronize measures a copy of so many KiB with the wait for it.
func BenchmarkSynchronize(b *testing.B) {
	const largest = 16 << 20
	f := newFake(b)
	dev := f.device()
	s, from, to := f.stream(dev), f.alloc(dev, largest), f.alloc(dev, largest)
	for _, kib := range []int64{4, 256, largest >> 10} {
		op := cudaipc.Op{Kind: cudaipc.OpCopy, Dst: to, Src: from, Bytes: kib << 10}
		b.Run(fmt.Sprint(kib), func(b *testing.B) {
			for b.Loop() {
				if err := errors.Join(s.Submit(op), s.Synchronize(b.Context())); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
