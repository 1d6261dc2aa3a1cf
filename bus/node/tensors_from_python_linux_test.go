package node_test

import (
	"fmt"
	"hash/crc32"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// makeTensors is a pipeline whose first stage, a Python process, sends tensors.
func makeTensors(transport bus.TensorTransport, reader bus.StageSpec) bus.Pipeline {
	return bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "maker", Remote: &bus.Remote{}}, reader},
		Edges:  []bus.Edge{{From: "maker", To: reader.Name, Tensors: transport}},
	}
}

// got is a reader's answer for the tensor x of a message.
type got struct {
	CRC      uint32
	DType    string
	OnDevice bool
}

// gpuReader is a stage that checks its tensors. If gate is not nil, the stage receives from it
// before it reads each message.
func gpuReader(g *testbus.GPU, gate <-chan struct{}) bus.StageSpec {
	return bus.StageSpec{Name: "reader", Handle: func(t *bus.Task, d *bus.Delivery) error {
		m, err := d.Tensors(t.Context())
		if err != nil {
			return err
		}
		if gate != nil {
			select {
			case <-gate:
			case <-t.Context().Done():
				return nil
			}
		}
		var mine []cudaipc.Ptr
		defer func() {
			for _, p := range mine {
				_ = g.Dev.Free(p)
			}
		}()
		v, err := m.Unwrap(g.Stream, cudaipc.UUID{}, func(n int64) (cudaipc.Ptr, error) {
			p, err := g.Dev.Alloc(n)
			mine = append(mine, p)
			return p, err
		})
		if err != nil {
			return err
		}
		x := v.(map[string]any)["x"].(*lane.Tensor)
		data := make([]byte, x.Bytes())
		if len(data) > 0 {
			if err := g.Stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(data), Src: x.Ptr, Bytes: x.Bytes()}); err != nil {
				return err
			}
		}
		if err := g.Stream.Synchronize(t.Context()); err != nil {
			return err
		}
		if err := m.Err(); err != nil {
			return err
		}
		return t.Emit(map[string]any{"CRC": crc32.ChecksumIEEE(data), "DType": x.DType.String(), "OnDevice": m.OnDevice()})
	}}
}

// checksum reads the answer of a process that has sent a tensor.
func (p pythonEnd) checksum(t *testing.T) uint32 {
	t.Helper()
	var a struct{ Answer uint32 }
	if err := p.Answer(&a); err != nil {
		t.Fatal("Python has no checksum: ", err)
	}
	return a.Answer
}

func recvGot(t *testing.T, r *bus.Request) (v got) {
	t.Helper()
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := d.Decode(&m); err != nil {
		t.Fatal(err)
	}
	if err := d.Finish(nil); err != nil {
		t.Fatal(err)
	}
	_, _ = fmt.Sscan(fmt.Sprint(m["CRC"]), &v.CRC)
	v.DType, _ = m["DType"].(string)
	v.OnDevice, _ = m["OnDevice"].(bool)
	return v
}

// TestTensorsFromPython: tensors that Python sends from GPU memory are read there.
func TestTensorsFromPython(t *testing.T) {
	for _, transport := range []bus.TensorTransport{bus.TensorsDefault, bus.TensorsPool, bus.TensorsIPC} {
		t.Run(transport.String(), func(t *testing.T) {
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
			h := listen(t, makeTensors(transport, gpuReader(g, nil)), bus.Options{GPU: g.Options(pool.Options{})})
			p := h.pythonAs(t, "testdata/maker.py")
			r := testbus.StreamOf(t, h.bus)
			var mu sync.Mutex // of n
			n := 0
			for _, kind := range []string{"chunk", "alias", "memory", "strided", "host"} {
				for _, of := range []struct {
					dtype string
					shape []int
				}{{"uint8", []int{100 << 10, 1}}, {"bfloat16", []int{300, 17}}, {"float32", []int{64, 33}}, {"int64", []int{5, 7}}, {"float64", []int{0, 4}}} {
					if kind == "strided" && of.shape[0] == 0 {
						continue
					}
					mu.Lock()
					n++
					mu.Unlock()
					number(t, r, byte(n))
					p.tell("emit", args{"kind": kind, "n": n, "dtype": of.dtype, "shape": of.shape})
					want := got{CRC: p.checksum(t), DType: of.dtype}
					want.OnDevice = transport != bus.TensorsDefault && kind != "host" && (of.shape[0] > 0 || kind == "chunk")
					if v := recvGot(t, r); v != want {
						t.Errorf("%s %v: got %+v, want %+v", kind, of, v, want)
					}
				}
			}
			p.do("until_free", nil, nil)
			p.do("in_use", nil, 0)
		})
	}
}

// makerAs is the sending Python process, with settings of its own.
func (h *hosted) makerAs(t *testing.T, settings ...string) pythonEnd {
	t.Helper()
	for _, s := range settings {
		name, value, _ := strings.Cut(s, "=")
		t.Setenv(name, value)
	}
	return h.pythonAs(t, "testdata/maker.py")
}

// emitsOne has the maker send a tensor of n bytes, and returns its checksum.
func (p pythonEnd) emitsOne(t *testing.T, r *bus.Request, kind string, n int) uint32 {
	t.Helper()
	number(t, r, 0)
	p.tell("emit", args{"kind": kind, "n": n})
	return p.checksum(t)
}

// TestPythonPoolIsFull: a tensor without space in the pool is sent as the options say.
func TestPythonPoolIsFull(t *testing.T) {
	const room = 256 << 10 // an arena has space for two
	start := func(t *testing.T, settings ...string) (pythonEnd, *bus.Request) {
		g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
		h := listen(t, makeTensors(bus.TensorsPool, gpuReader(g, nil)), bus.Options{GPU: g.Options(pool.Options{})})
		p := h.makerAs(t, settings...)
		r := testbus.StreamOf(t, h.bus)
		want := got{CRC: p.emitsOne(t, r, "memory", 1), DType: "uint8", OnDevice: true}
		if v := recvGot(t, r); v != want {
			t.Errorf("got %+v, want %+v", v, want)
		}
		p.do("until_free", nil, nil)
		for range 2 {
			p.do("hold", args{"nbytes": room}, nil)
		}
		p.do("in_use", nil, 2)
		return p, r
	}
	for _, kind := range []string{"chunk", "memory"} {
		t.Run("spill/"+kind, func(t *testing.T) {
			p, r := start(t, "WHEN_FULL=spill")
			want := got{CRC: p.emitsOne(t, r, kind, 2), DType: "uint8"}
			if v := recvGot(t, r); v != want {
				t.Errorf("got %+v, want %+v", v, want)
			}
			p.do("stats", nil, []int{1, 0, 1, 0, 0, 1})
		})
		t.Run("fail/"+kind, func(t *testing.T) {
			p, r := start(t, "WHEN_FULL=fail")
			number(t, r, 0)
			p.do("emit", args{"kind": kind, "n": 2}, "PoolFull")
			p.do("stats", nil, []int{0, 0, 1, 0, 0, 0})
			p.do("drop", nil, nil)
			want := got{CRC: p.emitsOne(t, r, kind, 3), DType: "uint8", OnDevice: true}
			if v := recvGot(t, r); v != want {
				t.Errorf("got %+v, want %+v", v, want)
			}
		})
		t.Run("block/"+kind, func(t *testing.T) {
			p, r := start(t, "WHEN_FULL=block", "TIMEOUT=60")
			number(t, r, 0)
			p.tell("emit_dropping", args{"kind": kind, "n": 2})
			want := got{CRC: p.checksum(t), DType: "uint8", OnDevice: true}
			if v := recvGot(t, r); v != want {
				t.Errorf("got %+v, want %+v", v, want)
			}
		})
	}
	t.Run("block until the time is up", func(t *testing.T) {
		p, r := start(t, "WHEN_FULL=block", "TIMEOUT=0.01")
		number(t, r, 0)
		p.do("emit", args{"kind": "memory", "n": 2}, "PoolFull")
	})
}

// TestTensorsFromPythonAreSentOnce: a tensor that was sent, or that a child process has inherited,
// cannot be sent.
func TestTensorsFromPythonAreSentOnce(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
	h := listen(t, makeTensors(bus.TensorsPool, gpuReader(g, nil)), bus.Options{GPU: g.Options(pool.Options{})})
	p := h.pythonAs(t, "testdata/maker.py")
	r := testbus.StreamOf(t, h.bus)
	number(t, r, 0)
	p.do("again", nil, []string{"Finished", "Finished", "Finished"})
	recvGot(t, r)
	p.do("forked", nil, []string{"ForkedError", "ForkedError"})
	p.do("until_free", nil, nil)
}

// TestTensorsFromPythonToPython sends tensors from one Python process to another, either of which
// may die. A chunk is free when no process reads it any more, and a sent tensor stays while it is
// viewed.
func TestTensorsFromPythonToPython(t *testing.T) {
	const n = 100 << 10
	for _, transport := range []bus.TensorTransport{bus.TensorsPool, bus.TensorsIPC} {
		t.Run(transport.String(), func(t *testing.T) {
			h := listen(t, makeTensors(transport, bus.StageSpec{Name: "reader", Remote: &bus.Remote{}}), bus.Options{})
			p, reader := h.pythonAs(t, "testdata/maker.py"), h.pythonAs(t, "testdata/tensors.py")
			r := testbus.StreamOf(t, h.bus)
			var crcs []uint32
			take := func(i int, kind string) {
				t.Helper()
				crcs = append(crcs, p.emitsOne(t, r, kind, i))
				reader.do("take", args{"n": i}, []any{"uint8", []int{n}, "emul"})
				reader.do("view", args{"n": i}, crcs[i])
			}
			for i, kind := range []string{"chunk", "memory", "chunk", "memory"} {
				take(i, kind)
			}
			p.do("in_use", nil, 4)
			for i := range 3 {
				reader.do("finish", args{"n": i}, nil)
				reader.do("look", args{"n": i}, crcs[i]) // a viewed tensor stays
			}
			p.do("in_use", nil, 4)
			for i := range 3 {
				reader.do("drop", args{"n": i}, nil)
			}
			p.tell("until_in_use", args{"n": 1})
			p.want(nil)
			p.Kill()
			reader.do("look", args{"n": 3}, crcs[3])
			reader.do("finish", args{"n": 3}, nil)
		})
		t.Run(transport.String()+" to one that dies", func(t *testing.T) {
			h := listen(t, makeTensors(transport, bus.StageSpec{Name: "reader", Remote: &bus.Remote{}}), bus.Options{})
			p, reader := h.pythonAs(t, "testdata/maker.py"), h.pythonAs(t, "testdata/tensors.py")
			r := testbus.StreamOf(t, h.bus)
			for i := range 2 {
				crc := p.emitsOne(t, r, "memory", i)
				reader.do("take", args{"n": i}, []any{"uint8", []int{n}, "emul"})
				reader.do("view", args{"n": i}, crc)
			}
			p.do("in_use", nil, 2)
			reader.Kill()
			p.do("until_free", nil, nil)
		})
	}
}

// fakeCUDA builds a fake CUDA library, and has processes that start from now on load it.
func fakeCUDA(t *testing.T) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("no C compiler: the fake CUDA library is not built")
	}
	sources, err := filepath.Glob("../../cudaipc/cuda/testdata/fake/*.c")
	if err != nil || len(sources) == 0 {
		t.Fatal("the sources of the fake CUDA library: ", err)
	}
	dir := t.TempDir()
	build := exec.Command(cc, append([]string{"-shared", "-fPIC", "-O1", "-pthread", "-o", filepath.Join(dir, "libcuda.so.1")}, sources...)...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the fake CUDA library: %v\n%s", err, out)
	}
	t.Setenv("LD_LIBRARY_PATH", dir)
}

// TestTensorsFromPythonOnCUDA: the client sends and reads tensors through CUDA's interface, between
// processes.
func TestTensorsFromPythonOnCUDA(t *testing.T) {
	fakeCUDA(t)
	for _, transport := range []bus.TensorTransport{bus.TensorsPool, bus.TensorsIPC} {
		t.Run(transport.String(), func(t *testing.T) {
			h := listen(t, makeTensors(transport, bus.StageSpec{Name: "reader", Remote: &bus.Remote{}}), bus.Options{})
			t.Setenv(node.EnvStage, "maker")
			p := h.pythonAs(t, "testdata/cuda.py")
			t.Setenv(node.EnvStage, "reader")
			reader := h.pythonAs(t, "testdata/cuda.py")
			r := testbus.StreamOf(t, h.bus)
			emit := func(kind string, n int, stuck bool) uint32 {
				t.Helper()
				number(t, r, 0)
				p.tell("emit", args{"kind": kind, "n": n, "stuck": stuck})
				return p.checksum(t)
			}
			for n, kind := range []string{"chunk", "memory", "strided", "chunk", "strided"} {
				crc := emit(kind, n, false)
				reader.tell("take", nil)
				var ready any // or not yet
				if err := reader.Answer(&ready); err != nil {
					t.Fatal(err)
				}
				reader.do("read", nil, crc)
			}
			p.do("drain", nil, true)
			p.do("stats", nil, map[bus.TensorTransport][]int{bus.TensorsPool: {0, 0, 5, 0, 0, 0}, bus.TensorsIPC: {0, 5, 0, 0, 0, 0}}[transport])

			emit("memory", 1, true)
			reader.do("take", nil, false) // it is not complete
			reader.tell("read", nil)
			p.Kill()
			reader.want("Poisoned")
		})
	}
}

// TestTensorsOfPythonRequests: an input goes to each edge by the transport of that edge.
func TestTensorsOfPythonRequests(t *testing.T) {
	g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
	reader, other := gpuReader(g, nil), gpuReader(g, nil)
	other.Name = "other"
	h := listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{reader, other},
		Edges:  []bus.Edge{{To: "reader", Tensors: bus.TensorsPool}, {To: "other", Tensors: bus.TensorsIPC, TensorMinBytes: 8 << 10}},
	}, bus.Options{GPU: g.Options(pool.Options{})})
	p := h.makerAs(t, "ROLE=submits")
	for _, kind := range []string{"chunk", "memory"} {
		p.do("submit", args{"kind": kind, "n": 1, "dtype": "uint8", "shape": []int{100 << 10}}, []bool{true, true})
		p.do("submit", args{"kind": kind, "n": 2, "dtype": "uint8", "shape": []int{4 << 10}}, []bool{false, true})
	}
	p.do("stats", nil, []int{2, 2, 4, 0, 2, 0})
	p.do("until_free", nil, nil)
}

// TestTensorsOfPythonFunctions: stages that emit and yield tensors, in a thread and on an event
// loop, end on SIGTERM after their tensors were read.
func TestTensorsOfPythonFunctions(t *testing.T) {
	for _, role := range []string{"runs", "runs async"} {
		t.Run(role, func(t *testing.T) {
			g := testbus.NewGPU(t, emul.Options{GranularityBytes: 1 << 16})
			gate := make(chan struct{})
			h := listen(t, makeTensors(bus.TensorsPool, gpuReader(g, gate)), bus.Options{GPU: g.Options(pool.Options{})})
			cmd := pythontest.Command(t, "testdata/maker.py")
			cmd.Env = append(cmd.Env, node.EnvSocket+"="+h.path, "ROLE="+role)
			p := pythontest.Start(t, cmd)
			r := testbus.StreamOf(t, h.bus)
			number(t, r, 5)
			if err := r.CloseSend(t.Context()); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- p.Answer(nil) }() // it sends no answer
			select {
			case gate <- struct{}{}:
			case err := <-ended:
				t.Fatal("Python ended before it sent anything: ", err)
			}
			first := recvGot(t, r)
			if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			close(gate)
			second := recvGot(t, r)
			for i, v := range []got{first, second} {
				if want := (got{CRC: crcOfPattern(5+i, 4096), DType: "uint8", OnDevice: true}); v != want {
					t.Errorf("got %+v, want %+v", v, want)
				}
			}
			if err := p.End(); err != nil {
				t.Error(err)
			}
		})
	}
}

// crcOfPattern is the checksum of the pattern that testdata/maker.py fills tensors with.
func crcOfPattern(n, size int) uint32 {
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(i%256*7 + n*31)
	}
	return crc32.ChecksumIEEE(data)
}
