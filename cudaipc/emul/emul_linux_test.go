package emul_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// bench is a driver with its first device, some memory and a stream.
type bench struct {
	*testing.T
	driver *emul.Driver
	dev    cudaipc.Device
	stream cudaipc.Stream
	mem    []byte
	host   cudaipc.HostMemory
}

// newBench opens a driver, and checks at the end of the test that none of its objects is left.
func newBench(t *testing.T, opts emul.Options) *bench {
	t.Helper()
	time.AfterFunc(time.Hour, func() {}).Stop() // the runtime opens two descriptors with the first timer
	before := countLeaks(t)
	ignored := goleak.IgnoreCurrent()
	driver, err := emul.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{T: t, driver: driver}
	t.Cleanup(func() {
		if err := errors.Join(driver.Close(), driver.Close()); err != nil {
			t.Errorf("close the driver: %v", err)
		}
		goleak.VerifyNone(t, ignored)
		if after := countLeaks(t); after != before {
			t.Errorf("left behind, descriptors and mappings: %+v, before %+v", after, before)
		}
		if u := driver.Usage(); u != (cudaipc.Usage{}) {
			t.Errorf("left behind: %+v", u)
		}
	})
	if b.dev, err = driver.Open(cudaipc.UUID{}); err != nil {
		t.Fatal(err)
	}
	if b.stream, err = b.dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	b.mem = pages(t, 4)
	if b.host, err = b.dev.RegisterHost(b.mem, false); err != nil {
		t.Fatal(err)
	}
	return b
}

// leaks counts what a process may leak beside memory: descriptors, and mappings of the driver, which
// are named or reserved.
type leaks struct{ descriptors, memfds, reserved int }

func countLeaks(t *testing.T) (l leaks) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	l.descriptors = len(fds)
	for line := range strings.Lines(string(maps)) {
		if strings.Contains(line, "memfd:omnibus-emul") {
			l.memfds++
		}
		var from, to uint64
		var may string
		_, err := fmt.Sscanf(line, "%x-%x %4s", &from, &to, &may)
		if err == nil && may == "---p" && to-from >= 1<<29 && to-from <= 1<<31 {
			l.reserved++
		}
	}
	return l
}

func pages(t *testing.T, n int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, n*os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func (b *bench) alloc(n int64) cudaipc.Ptr {
	b.Helper()
	p, err := b.dev.Alloc(n)
	if err != nil {
		b.Fatal(err)
	}
	return p
}

// run submits operations and returns their error.
func (b *bench) run(ops ...cudaipc.Op) error {
	b.Helper()
	if err := b.stream.Submit(ops...); err != nil {
		return err
	}
	return b.stream.Synchronize(b.Context())
}

func copying(dst, src cudaipc.Ptr, n int64) cudaipc.Op {
	return cudaipc.Op{Kind: cudaipc.OpCopy, Dst: dst, Src: src, Bytes: n}
}

func wantIllegal(t *testing.T, err error) {
	t.Helper()
	own := (*cudaipc.Error)(nil)
	if !errors.As(err, &own) || own.Code != 700 || !errors.Is(err, cudaipc.ErrSticky) {
		t.Errorf("%v, want a sticky error 700", err)
	}
}

// TestIllegalAccess: an illegal access ends the device, and not the process.
func TestIllegalAccess(t *testing.T) {
	for name, op := range map[string]func(*bench) cudaipc.Op{
		"freed": func(b *bench) cudaipc.Op {
			p := b.alloc(1 << 20)
			if err := b.dev.Free(p); err != nil {
				b.Fatal(err)
			}
			return copying(p, b.host.Ptr(0), 8)
		},
		"behind the end":  func(b *bench) cudaipc.Op { return copying(b.alloc(4096), b.host.Ptr(0), 4097) },
		"read behind end": func(b *bench) cudaipc.Op { return copying(b.host.Ptr(0), b.alloc(4096), 4097) },
		"before the start": func(b *bench) cudaipc.Op {
			return copying(b.alloc(4096)-1, b.host.Ptr(0), 2)
		},
		"rows behind the end": func(b *bench) cudaipc.Op {
			return cudaipc.Op{
				Kind: cudaipc.OpCopy2D, Dst: b.host.Ptr(0), Src: b.alloc(8192), Bytes: 16, Rows: 3,
				DstPitch: 16, SrcPitch: 4096,
			}
		},
		"closed arena": func(b *bench) cudaipc.Op {
			a, err := b.dev.NewArena(1)
			if err != nil {
				b.Fatal(err)
			}
			base := a.Base()
			a.Close()
			return copying(base, b.host.Ptr(0), 8)
		},
		"no address":    func(b *bench) cudaipc.Op { return copying(0, b.host.Ptr(0), 8) },
		"half of space": func(b *bench) cudaipc.Op { return copying(b.host.Ptr(0), b.host.Ptr(0), 1<<62) },
		"unmapped host memory": func(b *bench) cudaipc.Op {
			mem, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = unix.Munmap(mem) })
			return copying(cudaipc.HostPtr(mem), b.host.Ptr(0), 8)
		},
		"memory registered for reading": func(b *bench) cudaipc.Op {
			h, err := b.dev.RegisterHost(pages(b.T, 1), true)
			if err != nil {
				b.Fatal(err)
			}
			return copying(h.Ptr(0), b.host.Ptr(0), 8)
		},
		"memory for reading": func(b *bench) cudaipc.Op {
			mem := pages(b.T, 1)
			if err := unix.Mprotect(mem, unix.PROT_READ); err != nil {
				b.Fatal(err)
			}
			h, err := b.dev.RegisterHost(mem, true)
			if err != nil {
				b.Fatal(err)
			}
			return cudaipc.Op{Kind: cudaipc.OpWrite, Word: h.Word(0), Value: 1}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, emul.Options{})
			wantIllegal(t, b.run(op(b)))
			wantIllegal(t, b.dev.Err())
		})
	}
}

// TestUnregisteredWordEndsWait: a wait for a word ends when its memory is unregistered.
func TestUnregisteredWordEndsWait(t *testing.T) {
	b := newBench(t, emul.Options{})
	if err := b.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: b.host.Word(64), Value: 1}); err != nil {
		t.Fatal(err)
	}
	if err := b.host.Close(); err != nil {
		t.Log("closed as late as that:", err)
	}
	wantIllegal(t, b.stream.Synchronize(t.Context()))
}

// TestFreeWaits: Free waits for the operations that use the memory.
func TestFreeWaits(t *testing.T) {
	b := newBench(t, emul.Options{Delay: func(s emul.Step) time.Duration { return time.Millisecond }})
	p := b.alloc(4096)
	b.mem[0] = 7
	if err := b.stream.Submit(copying(p, b.host.Ptr(0), 1), copying(b.host.Ptr(1), p, 1)); err != nil {
		t.Fatal(err)
	}
	if err := b.dev.Free(p); err != nil {
		t.Errorf("Free: %v", err)
	}
	if b.mem[1] != 7 {
		t.Error("the memory was freed under the copy")
	}
}

// TestFault: an injected failure ends the device after the operation.
func TestFault(t *testing.T) {
	broken := errors.New("made to fail")
	b := newBench(t, emul.Options{Devices: 2, Fault: func(s emul.Step) error {
		if s.Kind == cudaipc.OpWrite && s.Device == emul.UUID(0) && s.Stream == 1 {
			return broken
		}
		return nil
	}})
	w := b.host.Word(0)
	err := b.run(copying(b.host.Ptr(64), b.host.Ptr(0), 4), cudaipc.Op{Kind: cudaipc.OpWrite, Word: w, Value: 1})
	if !errors.Is(err, cudaipc.ErrSticky) || !errors.Is(err, broken) {
		t.Errorf("%v, want the sticky error that was asked for", err)
	}
	if w.Host.Load() != 0 {
		t.Error("the operation that failed was done")
	}
	if _, err := b.driver.Open(emul.UUID(0)); !errors.Is(err, cudaipc.ErrSticky) {
		t.Errorf("open a device that has failed: %v", err)
	}
	if _, err := b.driver.Open(emul.UUID(1)); err != nil {
		t.Errorf("open the other device: %v", err)
	}
}

// TestFaultSpreads: a device that waits for an event of a failed device fails.
func TestFaultSpreads(t *testing.T) {
	b := newBench(t, emul.Options{Devices: 2})
	other, err := b.driver.Open(emul.UUID(1))
	if err != nil {
		t.Fatal(err)
	}
	e, err := b.dev.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	s, err := other.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		b.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: b.host.Word(0), Value: 1}, cudaipc.Op{Kind: cudaipc.OpRecord, Event: e}),
		s.Submit(cudaipc.Op{Kind: cudaipc.OpAwait, Event: e}),
		b.driver.Break(emul.UUID(0), errors.New("broken")),
	)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Synchronize(t.Context()); !errors.Is(err, cudaipc.ErrSticky) {
		t.Errorf("behind an event that never came: %v", err)
	}
}

// TestCopiesAreLate: a copy reads its source when its time is over.
func TestCopiesAreLate(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	b := newBench(t, emul.Options{Delay: func(s emul.Step) time.Duration {
		if s.Kind == cudaipc.OpCopy {
			close(asked)
			<-release
		}
		return 1
	}})
	b.mem[0] = 1
	if err := b.stream.Submit(copying(b.host.Ptr(1), b.host.Ptr(0), 1)); err != nil {
		t.Fatal(err)
	}
	<-asked
	b.mem[0] = 2 // too early
	close(release)
	if err := b.stream.Synchronize(t.Context()); err != nil || b.mem[1] != 2 {
		t.Errorf("%d, %v: the copy was made too early", b.mem[1], err)
	}
}

func TestRefuse(t *testing.T) {
	full := &cudaipc.Error{Call: "NewArena", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY", Err: cudaipc.ErrOutOfMemory}
	b := newBench(t, emul.Options{Refuse: func(call string) error {
		if call == "NewArena" {
			return full
		}
		return nil
	}})
	if _, err := b.dev.NewArena(1); !errors.Is(err, full) {
		t.Errorf("NewArena: %v", err)
	}
	if u := b.driver.Usage(); u.Arenas != 0 || u.Bytes != 0 {
		t.Errorf("refused, and yet %+v", u)
	}
}

// TestMemoryIsCounted: allocations beyond the device's memory fail, and freed memory is available
// again.
func TestMemoryIsCounted(t *testing.T) {
	const granularity, total = 64 << 10, 256 << 10
	b := newBench(t, emul.Options{TotalBytes: total, GranularityBytes: granularity})
	for range 3 {
		var closing []func() error
		for range total / granularity / 2 {
			a, err := b.dev.NewArena(1)
			if err != nil {
				t.Fatal(err)
			}
			p := b.alloc(granularity)
			closing = append(closing, a.Close, func() error { return b.dev.Free(p) })
		}
		if _, err := b.dev.NewArena(1); !errors.Is(err, cudaipc.ErrOutOfMemory) {
			t.Errorf("an arena too many: %v", err)
		}
		if _, err := b.dev.Alloc(1); !errors.Is(err, cudaipc.ErrOutOfMemory) {
			t.Errorf("an allocation too many: %v", err)
		}
		all, err := b.driver.Probe(t.Context())
		if err != nil || all[0].FreeBytes != 0 || all[0].TotalBytes != total {
			t.Errorf("%+v, %v", all, err)
		}
		for _, c := range closing {
			if err := c(); err != nil {
				t.Error(err)
			}
		}
	}
	if u := b.driver.Usage(); u != (cudaipc.Usage{Devices: 1, HostMemories: 1, Streams: 1}) {
		t.Errorf("all was closed, but for %+v", u)
	}
}

// TestForeignDescriptors: only sealed memory of NewArena can be imported as an arena.
func TestForeignDescriptors(t *testing.T) {
	b := newBench(t, emul.Options{})
	a, err := b.dev.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	unsealed, err := unix.MemfdCreate("omnibus-emul-arena-00", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(unsealed)
	if err := unix.Ftruncate(unsealed, a.Bytes()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.dev.ImportArena(unsealed, a.Bytes()); !errors.Is(err, cudaipc.ErrStaleHandle) {
		t.Errorf("import memory whose size may change: %v", err)
	}
	if _, err := b.dev.ImportArena(a.FD(), a.Bytes()-1); !errors.Is(err, cudaipc.ErrInvalid) {
		t.Errorf("import an arena of another size: %v", err)
	}
	if err := unix.Ftruncate(a.FD(), 0); !errors.Is(err, unix.EPERM) {
		t.Errorf("shrink an arena: %v", err)
	}
}

func TestNoPeers(t *testing.T) {
	b := newBench(t, emul.Options{Devices: 2, Missing: map[string]string{"Peers": "of another board"}})
	other, err := b.driver.Open(emul.UUID(1))
	if err != nil {
		t.Fatal(err)
	}
	a, err := other.NewArena(1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.dev.ImportArena(a.FD(), a.Bytes()); !errors.Is(err, cudaipc.ErrUnsupported) {
		t.Errorf("import an arena of a device that is no peer: %v", err)
	}
	wantIllegal(t, b.run(copying(a.Base(), b.host.Ptr(0), 8)))
	if err := other.Err(); err != nil {
		t.Errorf("the device whose memory it was: %v", err)
	}
}

// TestDriversApart: two drivers in one process count as one process, unless Apart is set.
func TestDriversApart(t *testing.T) {
	a := newBench(t, emul.Options{})
	p := a.alloc(4096)
	h, _, err := a.dev.Export(p)
	if err != nil {
		t.Fatal(err)
	}
	together, apart := newBench(t, emul.Options{}), newBench(t, emul.Options{Apart: true})
	if _, _, err := together.dev.Import(h); !errors.Is(err, cudaipc.ErrOwnHandle) {
		t.Errorf("Import by another driver: %v", err)
	}
	base, _, err := apart.dev.Import(h)
	if err != nil {
		t.Fatalf("Import by a driver apart: %v", err)
	}
	a.mem[0] = 9
	if err := errors.Join(a.run(copying(p, a.host.Ptr(0), 1)), apart.run(copying(apart.host.Ptr(0), base, 1))); err != nil {
		t.Fatal(err)
	}
	if apart.mem[0] != 9 {
		t.Error("the handle is of other memory")
	}
	h, _, err = apart.dev.Export(apart.alloc(4096))
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := apart.dev.Import(h); !errors.Is(err, cudaipc.ErrOwnHandle) {
		t.Errorf("Import of its own, by a driver apart: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, opts := range map[string]emul.Options{
		"devices":     {Devices: -2},
		"bytes":       {TotalBytes: -1},
		"speed":       {BytesPerSecond: -1},
		"granularity": {GranularityBytes: 100},
		"field":       {Missing: map[string]string{"Wings": "it is no bird"}},
	} {
		if _, err := emul.New(opts); !errors.Is(err, cudaipc.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	b := newBench(t, emul.Options{Missing: map[string]string{"Handles": "one", "Peers": "two"}})
	if c := b.dev.Caps(); c.Handles || c.Why["Handles"] != "one" || c.Why["Peers"] != "two" || len(c.Why) != 2 {
		t.Errorf("%+v", c)
	}
	bare, err := emul.New(emul.Options{Missing: map[string]string{"RegisterHost": "three", "Words": "four"}})
	if err != nil {
		t.Fatal(err)
	}
	defer bare.Close()
	all, err := bare.Probe(t.Context())
	if err != nil || all[0].Words || all[0].Why["Words"] != "four" || all[0].Why["RegisterReadOnly"] != "three" {
		t.Errorf("%+v, %v", all, err)
	}
	if got := emul.UUID(0).String(); got != "GPU-656d756c-0000-0000-0000-000000000001" {
		t.Errorf("the first device is %s: processes of other versions know another", got)
	}
}
