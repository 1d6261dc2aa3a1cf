package tensorqueue_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus/tensorqueue"
	"github.com/omnibus-runtime/omnibus/codec"
)

// pythonEnd is a Python process that has joined a queue: see testdata/end.py.
type pythonEnd struct {
	t       *testing.T
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *bufio.Scanner
}

func python(t *testing.T, opts tensorqueue.Options) *pythonEnd {
	t.Helper()
	path, err := exec.LookPath(cmp.Or(os.Getenv("OMNIBUS_PYTHON"), "python3"))
	if err != nil {
		t.Skip("python3 is not installed")
	}
	client, err := filepath.Abs("../../clients/python/src")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, "testdata/end.py", opts.Socket)
	cmd.Env, cmd.Stderr = append(os.Environ(), "PYTHONPATH="+client), os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &pythonEnd{t: t, cmd: cmd, in: in, answers: bufio.NewScanner(out)}
	t.Cleanup(func() { p.end(true) })
	return p
}

// end ends the process: kills it, or lets it come to its end.
func (p *pythonEnd) end(kill bool) {
	_ = p.in.Close()
	if kill {
		_ = p.cmd.Process.Kill()
	}
	_ = p.cmd.Wait()
}

func (p *pythonEnd) tell(do ...any) {
	p.t.Helper()
	line, err := json.Marshal(do)
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.t.Fatal(err)
	}
}

func (p *pythonEnd) want(want any) {
	p.t.Helper()
	if !p.answers.Scan() {
		p.t.Fatal("the Python process has ended: ", p.answers.Err())
	}
	line, err := json.Marshal(want)
	if err != nil {
		p.t.Fatal(err)
	}
	var got, wanted any
	if err := json.Unmarshal(p.answers.Bytes(), &got); err != nil {
		p.t.Fatal(err)
	}
	if err := json.Unmarshal(line, &wanted); err != nil {
		p.t.Fatal(err)
	}
	if fmt.Sprint(got) != fmt.Sprint(wanted) {
		p.t.Errorf("Python answers %s, want %s", p.answers.Bytes(), line)
	}
}

// item is what an end in Python says of one.
func item(rid string, n, size int) []any {
	if size == 0 {
		return []any{rid, "psm_" + rid, nil}
	}
	crc := crc32.ChecksumIEEE(bytes.Repeat([]byte{byte(n)}, size))
	return []any{rid, "psm_" + rid, map[string]any{"crc": crc, "shape": []int{size / 4, 4}, "n": n}}
}

func putFor(t *testing.T, q *tensorqueue.Queue, rid string, n, size int) {
	t.Helper()
	var inputs map[string]any
	if size > 0 {
		x := codec.Tensor{DType: codec.DTypeUint8, Shape: []int{size / 4, 4}, Data: bytes.Repeat([]byte{byte(n)}, size)}
		inputs = map[string]any{"x": x, "n": n}
	}
	if err := q.Put(t.Context(), rid, "psm_"+rid, inputs, tensorqueue.PutOptions{}); err != nil {
		t.Fatal(err)
	}
}

var sizesInPython = []int{0, 64, 4 << 10, 3 << 20}

// TestQueueWithPython: what Go puts Python gets, and the other way round, and
// Python from Python.
func TestQueueWithPython(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 3})
	p, other := python(t, opts), python(t, opts)
	for n, size := range sizesInPython {
		putFor(t, q, "from Go", n, size)
		p.tell("get", 60)
		p.want(item("from Go", n, size))

		p.tell("put", "from Python", n, size)
		p.want(nil)
		it := get(t, q)
		if it.RID != "from Python" || it.ShmName != "psm_from Python" {
			t.Errorf("got %q, %q", it.RID, it.ShmName)
		}
		if x, ok := it.Inputs()["x"].(codec.Tensor); ok != (size > 0) || !bytes.Equal(x.Data, bytes.Repeat([]byte{byte(n)}, size)) {
			t.Errorf("got %v", it.Inputs())
		}
		closeItem(t, it)

		other.tell("get", nil)
		p.tell("put", "between", n, size)
		p.want(nil)
		other.want(item("between", n, size))
	}
	p.tell("drain")
	p.want(true)
	for range 2 {
		p.tell("get", 0)
		p.want("Empty")
		p.tell("get", 0.02)
		p.want("Empty")
	}
	for n := range 3 {
		p.tell("put", fmt.Sprint(n), n, 4<<10)
		p.want(nil)
	}
	p.tell("put", "too much", 9, 4<<10, 0.02)
	p.want("Full")
	other.tell("sizes")
	other.want([]any{3, 3, false, true})
	other.tell("get", 0)
	other.want(item("0", 0, 4<<10))
	p.tell("put", "3", 3, 64)
	p.want(nil)
	for n, size := range []int{1: 4 << 10, 2: 4 << 10, 3: 64} {
		if n > 0 {
			other.tell("get", nil)
			other.want(item(fmt.Sprint(n), n, size))
		}
	}
	other.tell("close")
	other.want(nil)
	p.tell("drain")
	p.want(true)
	other.end(false)
	if n := size(t, q); n != 0 {
		t.Errorf("%d items are left", n)
	}
}

// TestPythonPutterDies: what it had put is withdrawn.
func TestPythonPutterDies(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{MaxSize: 3})
	p := python(t, opts)
	p.tell("put", "lost", 1, 4<<10)
	p.want(nil)
	p.end(true)
	for size(t, q) != 0 {
		runtime.Gosched() // until the owner has seen it
	}
	putFor(t, q, "next", 2, 64)
	other := python(t, opts)
	other.tell("get", 60)
	other.want(item("next", 2, 64))
}

// TestPythonSeesTheQueueClose: who waits is told.
func TestPythonSeesTheQueueClose(t *testing.T) {
	q, opts := open(t, tensorqueue.Options{})
	p := python(t, opts)
	p.tell("sizes")
	p.want([]any{0, tensorqueue.LargestSize, true, false})
	p.tell("get", 60)
	closeQueue(t, q)
	if !p.answers.Scan() {
		t.Fatal("the Python process has ended")
	}
	if got := p.answers.Text(); got != `"Closing"` && got != `"HostGone"` {
		t.Errorf("Python answers %s", got)
	}
}
