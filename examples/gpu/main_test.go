package main

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc64"
	"log"
	"os"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// playMain, in the environment, makes the test binary the program.
const playMain = "GPU_TEST_PLAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(playMain) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// emulated are the program's options in tests. The other process is the test
// binary.
func emulated(t *testing.T) (options, *bytes.Buffer) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("GPUs are emulated on Linux alone")
	}
	t.Setenv(playMain, "1")
	var out bytes.Buffer
	return options{driver: "emul", transport: "cuda_ipc_pool", tensors: 5, rows: 64, out: &out, open: openDriver}, &out
}

// TestTransports: tensors arrive intact, through both processes, by the requested
// transport.
func TestTransports(t *testing.T) {
	for transport, came := range map[string]string{
		"cuda_ipc_pool": "map[in GPU memory:5]",
		"cuda_ipc":      "map[in GPU memory:5]",
		"default":       "map[through host memory:5]",
	} {
		t.Run(transport, func(t *testing.T) {
			o, out := emulated(t)
			o.transport = transport
			if err := serve(t.Context(), o); err != nil {
				t.Fatal(err)
			}
			if got, want := out.String(), "emulated GPU 0: tensors of 256 KiB by "+transport+", as they came: "+came+"\n"; got != want {
				t.Errorf("it says %q, want %q", got, want)
			}
		})
	}
}

// TestStandIn: without a GPU the program uses an emulated one, and logs the reason.
func TestStandIn(t *testing.T) {
	o, out := emulated(t)
	driver, err := openDriver("cuda")
	if err == nil {
		_ = driver.Close()
		t.Skip("this machine has a GPU")
	}
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	o.driver = ""
	if err := serve(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "an emulated GPU stands in: "+err.Error()) || !strings.HasPrefix(out.String(), "emulated GPU 0: ") {
		t.Errorf("it says %q and %q", said.String(), out)
	}
}

// TestFallback: where tensors cannot travel by the requested transport, the program logs the reason.
func TestFallback(t *testing.T) {
	o, out := emulated(t)
	o.open = func(string) (cudaipc.Driver, error) {
		return emul.New(emul.Options{Refuse: func(call string) error {
			if call == "NewArena" {
				return fmt.Errorf("%w: it has no space for a pool", cudaipc.ErrOutOfMemory)
			}
			return nil
		}})
	}
	var said bytes.Buffer
	log.SetOutput(&said)
	defer log.SetOutput(os.Stderr)
	if err := serve(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(said.String(), "tensors travel through host memory") || !strings.Contains(said.String(), "it has no space for a pool") {
		t.Errorf("it says %q and %q", said.String(), out)
	}
}

// TestChecksum: the checksum detects rows that were not turned.
func TestChecksum(t *testing.T) {
	buffer := bytes.Repeat([]byte("left"), columns)
	for i := range buffer[:rowBytes/2] {
		buffer[i]++
	}
	turned := append(bytes.Clone(buffer[rowBytes/2:]), buffer[:rowBytes/2]...)
	if got, want := turnedChecksum(buffer), text(crc64.Checksum(turned, polynomial)); got != want {
		t.Errorf("of rows that are turned: %s, want %s", got, want)
	}
	if turnedChecksum(turned) == turnedChecksum(buffer) {
		t.Error("rows whose halves are swapped have the same checksum")
	}
}

func TestBadOptions(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*options)
		want   error // nil: any
	}{
		"driver":    {func(o *options) { o.driver = "opencl" }, nil},
		"transport": {func(o *options) { o.transport = "fax" }, bus.ErrConfig},
		"rows":      {func(o *options) { o.rows = 0 }, nil},
		"tensors":   {func(o *options) { o.tensors = 0 }, nil},
		"rest":      {func(o *options) { o.rest = []string{"cuda"} }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o, out := emulated(t)
			c.change(&o)
			err := serve(t.Context(), o)
			if err == nil || c.want != nil && !errors.Is(err, c.want) || out.Len() > 0 {
				t.Errorf("%v, and it says %q", err, out)
			}
			t.Log(err)
		})
	}
}
