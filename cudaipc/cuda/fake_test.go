//go:build cuda && linux && (amd64 || arm64)

package cuda

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/ebitengine/purego"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// The fake is a libcuda.so.1 of this repository, in testdata/fake. Each test loads its own copy,
// which has its own state.

var built struct {
	sync.Mutex
	dir   string
	paths map[string]string // by the compiler's flags
}

// removeFakes removes the built libraries, after all tests.
func removeFakes() {
	if built.dir != "" {
		_ = os.RemoveAll(built.dir)
	}
}

// compile builds the fake once for each set of flags.
func compile(t testing.TB, flags ...string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	key := strings.Join(flags, " ")
	if path, ok := built.paths[key]; ok {
		return path
	}
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler, which the library that plays CUDA's has to be built with")
	}
	if built.dir == "" {
		// The directory is for all tests, not only for the first.
		if built.dir, err = os.MkdirTemp("", "omnibus-cuda-"); err != nil { //nolint:usetesting // see above
			t.Fatal(err)
		}
		built.paths = make(map[string]string)
	}
	sources, err := filepath.Glob("testdata/fake/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatalf("the sources of the fake: %v", err)
	}
	path := filepath.Join(built.dir, fmt.Sprintf("libcuda-%d.so", len(built.paths)))
	args := append([]string{"-shared", "-fPIC", "-O1", "-pthread", "-o", path}, flags...)
	if out, err := exec.CommandContext(t.Context(), cc, append(args, sources...)...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", cc, err, out)
	}
	built.paths[key] = path
	return path
}

// fake is a loaded copy of the fake.
type fake struct {
	testing.TB
	path string

	record  func(on int32)
	poison  func(device, code int32)
	devices func(n int32)
	version func(v int32)
	name    func(name string)
	inject  func(name string, code, times int32)
	hold    func(name string, on int32)
	count   func(name string) int
	args    func(name string, values *uint64, bytes *int32) int32
	left    func() int
}

func newFake(t testing.TB, flags ...string) *fake {
	t.Helper()
	b, err := os.ReadFile(compile(t, flags...))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	if err := os.WriteFile(path, b, 0o700); err != nil {
		t.Fatal(err)
	}
	return openFake(t, path)
}

func openFake(t testing.TB, path string) *fake {
	t.Helper()
	handle, err := purego.Dlopen(path, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		t.Fatal(err)
	}
	f := &fake{TB: t, path: path}
	for name, fn := range map[string]any{
		"fake_record": &f.record, "fake_poison": &f.poison, "fake_devices": &f.devices,
		"fake_version": &f.version, "fake_name": &f.name, "fake_inject": &f.inject, "fake_hold": &f.hold,
		"fake_count": &f.count, "fake_args": &f.args, "fake_left": &f.left,
	} {
		purego.RegisterLibFunc(fn, handle, name)
	}
	return f
}

// open opens the driver over the fake.
func (f *fake) open() *driver {
	f.Helper()
	d, err := Open(Options{Library: f.path})
	if err != nil {
		f.Fatalf("Open: %v", err)
	}
	f.closeLater("driver", d)
	return d.(*driver)
}

func (f *fake) device() *device {
	f.Helper()
	dev, err := f.open().Open(cudaipc.UUID{})
	if err != nil {
		f.Fatalf("Open of the first device: %v", err)
	}
	f.closeLater("device", dev)
	return dev.(*device)
}

func (f *fake) closeLater(what string, c interface{ Close() error }) {
	f.Cleanup(func() {
		if err := c.Close(); err != nil {
			f.Errorf("close the %s: %v", what, err)
		}
	})
}

func (f *fake) stream(dev cudaipc.Device) *stream {
	f.Helper()
	s, err := dev.NewStream()
	if err != nil {
		f.Fatal(err)
	}
	f.closeLater("stream", s)
	return s.(*stream)
}

func (f *fake) event(dev cudaipc.Device) *event {
	f.Helper()
	e, err := dev.NewEvent()
	if err != nil {
		f.Fatal(err)
	}
	f.closeLater("event", e)
	return e.(*event)
}

func (f *fake) alloc(dev cudaipc.Device, sizeBytes int64) cudaipc.Ptr {
	f.Helper()
	p, err := dev.Alloc(sizeBytes)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := dev.Free(p); err != nil {
			f.Errorf("Free: %v", err)
		}
	})
	return p
}

func (f *fake) host(dev cudaipc.Device, sizeBytes int) ([]byte, cudaipc.HostMemory) {
	f.Helper()
	mem := pages(f, sizeBytes)
	h, err := dev.RegisterHost(mem, false)
	if err != nil {
		f.Fatal(err)
	}
	f.closeLater("host memory", h)
	return mem, h
}

// seen returns the arguments of the last call as the callee saw them, with their widths.
func (f *fake) seen(name string) (values []uint64, bytes []int32) {
	values, bytes = make([]uint64, 16), make([]int32, 16)
	n := f.args(name, &values[0], &bytes[0])
	return values[:n], bytes[:n]
}

// without loads a fake that lacks functions.
func without(t testing.TB, names ...string) *fake {
	t.Helper()
	flags := make([]string, len(names))
	for i, name := range names {
		flags[i] = "-D" + name + "=no_" + name
	}
	return newFake(t, flags...)
}
