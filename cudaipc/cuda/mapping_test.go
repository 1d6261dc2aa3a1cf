//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// mappings lists the calls that map memory, with the slow call of the driver in each, and a
// function that releases the memory.
var mappings = map[string]struct {
	call  string
	bring func(f *fake) func(dev cudaipc.Device) (back func() error, err error)
}{
	"a handle": {"cuIpcOpenMemHandle_v2", func(f *fake) func(cudaipc.Device) (func() error, error) {
		h := f.foreignHandle(1 << 20)
		return func(dev cudaipc.Device) (func() error, error) {
			base, _, err := dev.Import(h)
			return func() error { return dev.Unimport(base) }, err
		}
	}},
	"an arena of another": {"cuMemMap", func(f *fake) func(cudaipc.Device) (func() error, error) {
		a, err := f.device().NewArena(1 << 21)
		if err != nil {
			f.Fatal(err)
		}
		f.closeLater("arena", a)
		return func(dev cudaipc.Device) (func() error, error) {
			a, err := dev.ImportArena(a.FD(), a.Bytes())
			return func() error { return a.Close() }, err
		}
	}},
	"an arena": {"cuMemCreate", func(*fake) func(cudaipc.Device) (func() error, error) {
		return func(dev cudaipc.Device) (func() error, error) {
			a, err := dev.NewArena(1 << 21)
			return func() error { return a.Close() }, err
		}
	}},
	"host memory": {"cuMemHostRegister_v2", func(f *fake) func(cudaipc.Device) (func() error, error) {
		mem := pages(f, 4096)
		return func(dev cudaipc.Device) (func() error, error) {
			h, err := dev.RegisterHost(mem, false)
			return func() error { return h.Close() }, err
		}
	}},
}

// mappingResult is the result of a mapping call.
type mappingResult struct {
	back func() error
	err  error
}

// blockMapping starts a mapping call, and returns when it is blocked in the driver.
func (f *fake) blockMapping(call string, dev cudaipc.Device, bring func(cudaipc.Device) (func() error, error)) (came chan mappingResult) {
	f.Helper()
	before := f.count(call)
	f.hold(call, 1)
	came = make(chan mappingResult, 1)
	go func() {
		back, err := bring(dev)
		came <- mappingResult{back, err}
	}()
	for f.count(call) == before {
		runtime.Gosched()
	}
	return came
}

// TestMappingDoesNotBlockSubmit: operations are submitted while a call maps memory.
func TestMappingDoesNotBlockSubmit(t *testing.T) {
	for name, b := range mappings {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			dev := f.device()
			_, h := f.host(dev, 4096)
			s := f.stream(dev)
			came := f.blockMapping(b.call, dev, b.bring(f))
			submitted := make(chan error, 1)
			go func() { submitted <- s.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: h.Word(0), Value: 1}) }()
			var err error
			select {
			case err = <-submitted:
			case <-time.After(10 * time.Second):
				err = errors.New("it waits for memory to be mapped")
			}
			f.hold(b.call, 0)
			got := <-came
			if err := errors.Join(err, got.err); err != nil {
				t.Fatal(err)
			}
			if err := got.back(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestMappingDuringClose: memory whose mapping ends after the Close of the device is released.
func TestMappingDuringClose(t *testing.T) {
	for name, b := range mappings {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			bring := b.bring(f)
			before := f.left()
			d := f.open()
			dev, err := d.Open(cudaipc.UUID{})
			if err != nil {
				t.Fatal(err)
			}
			came := f.blockMapping(b.call, dev, bring)
			closed := make(chan error)
			go func() { closed <- d.Close() }()
			g := dev.(*device).ref.gpu
			for ended := false; !ended; {
				runtime.Gosched()
				g.mu.Lock()
				ended = g.stopped
				g.mu.Unlock()
			}
			f.hold(b.call, 0)
			if got := <-came; !errors.Is(got.err, cudaipc.ErrClosed) {
				t.Errorf("%v, want ErrClosed", got.err)
			}
			if err := <-closed; err != nil {
				t.Error(err)
			}
			if left := f.left(); left != before {
				t.Errorf("%d things are left, and %d were there before", left, before)
			}
		})
	}
}
