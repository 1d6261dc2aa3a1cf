//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// TestProbe: Probe lists the devices, and releases everything that it makes.
func TestProbe(t *testing.T) {
	f := newFake(t)
	f.name("NVIDIA H100 MIG 1g.10gb")
	d := f.open()
	all, err := d.Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if n := f.left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
	if len(all) != 2 {
		t.Fatalf("%d devices, want 2", len(all))
	}
	for i, c := range all {
		if !c.MIG || c.Name != "NVIDIA H100 MIG 1g.10gb "+string(rune('0'+i)) || c.Driver != "cuda 12.4" {
			t.Errorf("%+v", c)
		}
		if c.TotalBytes != 1<<30 || c.FreeBytes != 1<<30 || c.GranularityBytes != 2<<20 {
			t.Errorf("%+v", c)
		}
		if len(c.Peers) != 1 || c.Peers[0] != all[1-i].Device || len(c.Why) != 0 {
			t.Errorf("peers %v, why %v", c.Peers, c.Why)
		}
	}
}

// TestProbeSaysWhy: a feature that fails has the driver's error in Why.
func TestProbeSaysWhy(t *testing.T) {
	f := newFake(t)
	for field, call := range map[string]string{
		"Arenas": "cuMemExportToShareableHandle", "Handles": "cuIpcGetMemHandle", "Words": "cuStreamWaitValue32_v2",
	} {
		d, err := Open(Options{Library: f.path})
		if err != nil {
			t.Fatal(err)
		}
		f.inject(call, 801, 1)
		all, err := d.Probe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if why := all[0].Why[field]; !strings.Contains(why, call) || !strings.Contains(why, "801") {
			t.Errorf("Why[%s] = %q", field, why)
		}
		if len(all[0].Why) != 1 || len(all[1].Why) != 0 {
			t.Errorf("%v and %v", all[0].Why, all[1].Why)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := f.left(); n != 0 {
		t.Errorf("%d things are left", n)
	}
}

// TestProbeOfAnUnusableDevice: a GPU that is reserved by another process, or that fails, is in the
// list, and the others are complete.
func TestProbeOfAnUnusableDevice(t *testing.T) {
	for call, c := range map[string]struct {
		code int32
		name string
	}{
		"cuDevicePrimaryCtxRetain": {46, "CUDA_ERROR_DEVICE_UNAVAILABLE"},
		"cuMemGetInfo_v2":          {719, "CUDA_ERROR_LAUNCH_FAILED"},
		"cuMemCreate":              {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	} {
		f := newFake(t)
		f.inject(call, c.code, 1)
		all, err := f.open().Probe(t.Context())
		if err != nil || len(all) != 2 {
			t.Fatal(all, err)
		}
		if all[0].Arenas || !strings.Contains(all[0].Why["Arenas"], c.name) || !all[1].Arenas {
			t.Errorf("%+v", all)
		}
	}
}

// TestWaitsDoNotBlockOtherCalls: while a stream waits, other calls run, also those of goroutines
// that wait for that stream.
func TestWaitsDoNotBlockOtherCalls(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	plain := pages(t, 8192)
	p, s := f.alloc(dev, 4096), f.stream(dev)
	freed, err := dev.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	a, err := dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	registered, err := dev.RegisterHost(pages(t, 4096), false)
	if err != nil {
		t.Fatal(err)
	}
	gate, behind := h.Word(0), h.Word(64)
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: gate, Value: 1}); err != nil {
		t.Fatal(err)
	}
	waiting := map[string]func() error{
		"Synchronize": func() error { return s.Synchronize(t.Context()) },
		"Free":        func() error { return dev.Free(freed) },
		"Arena.Close": a.Close,
		"HostMemory":  registered.Close,
		"plain memory": func() error {
			plain[0] = 7
			return s.Submit(
				cudaipc.Op{Kind: cudaipc.OpCopy, Dst: p, Src: cudaipc.HostPtr(plain), Bytes: 4096},
				cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(plain[4096:]), Src: p, Bytes: 4096},
				cudaipc.Op{Kind: cudaipc.OpWrite, Word: behind, Value: 1},
			)
		},
	}
	type answer struct {
		name string
		err  error
	}
	answers := make(chan answer, len(waiting))
	for name, wait := range waiting {
		go func() { answers <- answer{name, wait()} }()
	}
	// Another stream works meanwhile, and releases the first one.
	other := f.stream(dev)
	for i := range uint32(20) {
		if err := other.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: h.Word(128), Value: i}); err != nil {
			t.Fatal(err)
		}
		if err := other.Synchronize(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case early := <-answers:
		t.Errorf("%s did not wait: %v", early.name, early.err)
	default:
	}
	if behind.Host.Load() != 0 {
		t.Error("an operation ran before its wait ended")
	}
	gate.Host.Store(1)
	for range waiting {
		if a := <-answers; a.err != nil {
			t.Errorf("%s: %v", a.name, a.err)
		}
	}
	if err := s.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if plain[4096] != 7 || behind.Host.Load() != 1 {
		t.Errorf("plain memory came back as %d, and the word behind it is %d", plain[4096], behind.Host.Load())
	}
}

// TestSynchronizeEnds: Synchronize ends with its context, and the stream continues.
func TestSynchronizeEnds(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	s := f.stream(dev)
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: h.Word(0), Value: 1}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Millisecond)
	defer cancel()
	if err := s.Synchronize(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Synchronize: %v", err)
	}
	h.Word(0).Host.Store(1)
	if err := s.Synchronize(t.Context()); err != nil {
		t.Error(err)
	}
}

// wantFreeWaits frees memory while a stream waits for 1 in a word, and checks that the memory stays
// until then.
func (f *fake) wantFreeWaits(dev cudaipc.Device, p cudaipc.Ptr, word cudaipc.Word) {
	f.Helper()
	frees, looks := f.count("cuMemFree_v2"), f.count("cuEventQuery")
	freed := make(chan error, 1)
	go func() { freed <- dev.Free(p) }()
	for f.count("cuEventQuery") < looks+2 {
		if f.count("cuMemFree_v2") != frees {
			f.Error("memory was freed while a stream could use it")
			break
		}
		runtime.Gosched()
	}
	word.Host.Store(1)
	if err := <-freed; err != nil {
		f.Error(err)
	}
}

// TestClosedStreamsAreWaitedFor: a closed stream with running operations delays the free of memory.
func TestClosedStreamsAreWaitedFor(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	p, err := dev.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: h.Word(0), Value: 1}); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	f.wantFreeWaits(dev, p, h.Word(0))
}

// TestWrappedStreamsAreNotDestroyed: closing a wrapped stream does not destroy it, and its
// operations still delay the free of memory.
func TestWrappedStreamsAreNotDestroyed(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	_, h := f.host(dev, 4096)
	p, err := dev.Alloc(1)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.WrapStream(f.stream(dev).Raw())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: h.Word(0), Value: 1}); err != nil {
		t.Fatal(err)
	}
	destroyed := f.count("cuStreamDestroy_v2")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := f.count("cuStreamDestroy_v2"); n != destroyed {
		t.Error("the stream was destroyed")
	}
	f.wantFreeWaits(dev, p, h.Word(0))
}

// TestDescriptorsCloseOnExec: started programs do not inherit an arena's descriptor.
func TestDescriptorsCloseOnExec(t *testing.T) {
	f := newFake(t)
	a, err := f.device().NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	flags, err := unix.FcntlInt(uintptr(a.FD()), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x, %v: want FD_CLOEXEC", flags, err)
	}
}

// TestArenaWithoutItsPeers: an arena works if the access of a peer fails.
func TestArenaWithoutItsPeers(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	f.inject("cuMemSetAccess", 217, 1)
	a, err := dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if values, _ := f.seen("cuMemSetAccess"); values[3] != 1 {
		t.Errorf("access for %d devices, want 1", values[3])
	}
}

// TestAllocationsAreWholeBlocks: memory with a handle shares its block with no other allocation.
func TestAllocationsAreWholeBlocks(t *testing.T) {
	f := newFake(t)
	dev := f.device()
	for _, c := range []struct{ bytes, want int64 }{{1, 2 << 20}, {2 << 20, 2 << 20}, {2<<20 + 1, 4 << 20}} {
		f.alloc(dev, c.bytes)
		if values, _ := f.seen("cuMemAlloc_v2"); values[1] != uint64(c.want) {
			t.Errorf("Alloc(%d) takes %d bytes, want %d", c.bytes, values[1], c.want)
		}
	}
}

// TestLastCloseReleasesContext: the last Close of a GPU releases the context, once.
func TestLastCloseReleasesContext(t *testing.T) {
	f := newFake(t)
	d := f.open()
	a, err := d.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	b, err := d.Open(a.Caps().Device)
	if err != nil {
		t.Fatal(err)
	}
	for i, end := range []func() error{a.Close, a.Close, b.Close, b.Close} {
		if open := f.left() > 0; open != (i < 3) {
			t.Errorf("before close %d the context exists: %t", i, open)
		}
		if err := end(); err != nil {
			t.Errorf("close %d: %v", i, err)
		}
	}
	if _, err := b.NewStream(); !errors.Is(err, cudaipc.ErrClosed) {
		t.Errorf("NewStream on a closed device: %v", err)
	}
}
