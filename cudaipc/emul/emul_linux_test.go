package emul_test

import (
	"testing"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// open returns a driver of which nothing is left when the test is over.
func open(t *testing.T, opts emul.Options) (*emul.Driver, cudaipc.Device) {
	t.Helper()
	ignored := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, ignored) })
	driver, err := emul.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { driver.Close() })
	device, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	return driver, device
}

// hostPages maps memory outside Go's heap.
func hostPages(t *testing.T, pages int) []byte {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, pages*unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Munmap(mem) })
	return mem
}

func TestSmoke(t *testing.T) {
	_, dev := open(t, emul.Options{})
	mem := hostPages(t, 2)
	host, err := dev.RegisterHost(mem, false)
	if err != nil {
		t.Fatal(err)
	}
	a, err := dev.NewArena(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		mem[i] = byte(i)
	}
	w := host.Word(4096)
	err = s.Submit(
		cudaipc.Op{Kind: cudaipc.OpCopy, Dst: a.Base(), Src: host.Ptr(0), Bytes: 100},
		cudaipc.Op{Kind: cudaipc.OpWait, Word: w, Value: 1},
		cudaipc.Op{Kind: cudaipc.OpCopy, Dst: host.Ptr(200), Src: a.Base(), Bytes: 100},
		cudaipc.Op{Kind: cudaipc.OpWrite, Word: host.Word(4100), Value: 7},
	)
	if err != nil {
		t.Fatal(err)
	}
	w.Host.Store(1)
	if err := s.Synchronize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if mem[299] != 99 || host.Word(4100).Host.Load() != 7 {
		t.Errorf("%v", mem[200:300])
	}
	s.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: a.Base() + 3<<20, Src: host.Ptr(0), Bytes: 100})
	t.Log(s.Synchronize(t.Context()))
	_, err = dev.NewArena(1)
	t.Log(err, dev.Err())
}
