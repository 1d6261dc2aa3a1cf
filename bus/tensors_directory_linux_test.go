package bus_test

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestTensorsWithFullDirectory: if the directory is full, so that no other process can find
// the arena, tensors travel through host memory, as without a pool, and are counted; when
// the directory has space again, tensors travel by the pool.
func TestTensorsWithFullDirectory(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
	const n = 100 << 10
	b := testbus.Open(t, bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "make", Handle: func(t *bus.Task, d *bus.Delivery) error {
				src, free := g.Tensor(n, byte(d.Seq))
				return t.EmitTensors(map[string]any{"x": src}, bus.TensorOptions{Release: free})
			}},
			{Name: "read", Handle: func(t *bus.Task, d *bus.Delivery) error {
				m, err := d.Tensors(t.Context())
				if err != nil {
					return err
				}
				how := "by host"
				if m.OnDevice() {
					how = "by pool"
				}
				if err := g.Check(t.Context(), m, n, byte(d.Seq)); err != nil {
					return err
				}
				return t.EmitBytes([]byte(how))
			}},
		},
		Edges: []bus.Edge{{From: "make", To: "read", Tensors: bus.TensorsPool}},
	}, bus.Options{GPU: g.Options(pool.Options{ArenaBytes: 512 << 10, MaxBytes: 512 << 10})})
	file, err := os.CreateTemp(t.TempDir(), "published")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	dir := b.Directory()
	var names []lane.Name
	for i := uint64(0); ; i++ {
		name := lane.Name{Number: 1}
		binary.NativeEndian.PutUint64(name.Pool[:], i)
		err := dir.Publish(t.Context(), name, int(file.Fd()), 1)
		if errors.Is(err, lane.ErrFull) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, name)
	}
	dir.Withdraw(names[0]) // space for the lane's words, and not for the arena
	r := testbus.StreamOf(t, b)
	trip := func(want string) {
		t.Helper()
		if err := r.Send(t.Context(), []byte("go")); err != nil {
			t.Fatal(err)
		}
		d, err := r.Recv(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got := string(d.Bytes()); got != want {
			t.Errorf("it came %s, want %s", got, want)
		}
		if err := d.Finish(nil); err != nil {
			t.Fatal(err)
		}
	}
	trip("by host")
	trip("by host")
	if s := b.Stats().Tensors; s.Fallbacks != 2 || s.Default.Messages != 2 || s.Failed != 0 {
		t.Errorf("%+v", s)
	}
	dir.Withdraw(names[1])
	trip("by pool")
	r.Close()
}
