//go:build linux

package host_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

// A run is a host in this process.
type run struct {
	t      *testing.T
	out    *output
	stop   context.CancelCauseFunc
	quit   chan struct{}
	ended  chan error
	socket string
}

// output keeps what a run prints. Write never blocks, since that would block the run's processes.
type output struct {
	mu    sync.Mutex
	more  sync.Cond
	text  strings.Builder
	ended bool
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.more.Broadcast()
	return o.text.Write(p)
}

func (o *output) Close() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.ended = true
	o.more.Broadcast()
	return nil
}

// await waits for a line with this beginning. It reports false if the run ended without one.
func (o *output) await(prefix string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !strings.Contains("\n"+o.text.String(), "\n"+prefix) {
		if o.ended {
			return false
		}
		o.more.Wait()
	}
	return true
}

func (o *output) has(text string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Contains(o.text.String(), text)
}

// start runs a pipeline whose processes are this test binary. SELF stands for it under exec and main.
func start(t *testing.T, file string, change ...func(*host.Options)) *run {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "omnibus") //nolint:usetesting // t.TempDir has the test's name in it: too long for a socket's path on some systems
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p, err := config.Parse(filepath.Join(dir, "test.yaml"), []byte(strings.ReplaceAll(file, "SELF", self)), config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	out := &output{}
	out.more.L = &out.mu
	ctx, cancel := context.WithCancelCause(context.Background())
	r := &run{t: t, out: out, stop: cancel, quit: make(chan struct{}), ended: make(chan error, 1), socket: filepath.Join(dir, "bus.sock")}
	opts := host.Options{Pipeline: p, Socket: r.socket, Stdout: out, Stderr: out, Quit: r.quit, Logger: slog.New(slog.NewTextHandler(out, nil))}
	for _, f := range change {
		f(&opts)
	}
	go func() {
		err := host.Run(ctx, opts)
		_ = out.Close()
		r.ended <- err
	}()
	t.Cleanup(func() {
		cancel(nil)
		out.await("\x00") // its end
	})
	return r
}

// await waits until the run has printed a line with this beginning.
func (r *run) await(prefix string) {
	r.t.Helper()
	if !r.out.await(prefix) {
		r.t.Fatalf("the run ended (%v) before it printed %q:\n%s", <-r.ended, prefix, r.out.text.String())
	}
}

// wait returns the error of the run, and all that it printed.
func (r *run) wait() (string, error) {
	err := <-r.ended
	return r.out.text.String(), err
}

func (r *run) join() *node.Node {
	r.t.Helper()
	n, err := node.Join(r.t.Context(), "test", node.JoinOptions{Socket: r.socket})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = n.Close(context.Background()) })
	return n
}

// submit sends one input and returns the result.
func (r *run) submit(n *node.Node, input string) (string, error) {
	r.t.Helper()
	req, err := n.Stream(r.t.Context())
	if err != nil {
		return "", err
	}
	defer req.Close()
	if err := req.Input(r.t.Context()).EmitBytes([]byte(input), bus.Last()); err != nil {
		return "", err
	}
	var got strings.Builder
	for d, err := range req.Results(r.t.Context()) {
		if err != nil {
			return got.String(), err
		}
		got.Write(d.Bytes())
	}
	return got.String(), nil
}

const twoStages = `
stages:
  - {stage_id: upper, omnibus: {exec: [SELF], replicas: 2}}
  - {stage_id: again, engine_input_source: [upper], omnibus: {exec: [SELF]}}
`

func TestRun(t *testing.T) {
	r := start(t, twoStages)
	r.await("ready: bus test at " + r.socket)
	n := r.join()
	if got, err := r.submit(n, "hello"); got != "HELLO" || err != nil {
		t.Fatalf("got %q, %v", got, err)
	}
	var s host.Status
	answer, err := n.Call(t.Context(), "status", nil)
	if err == nil {
		err = json.Unmarshal(answer, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	if s.Phase != host.PhaseReady || s.Bus != "test" || s.PID != os.Getpid() || s.Stats.Completed != 1 || len(s.Children) != 3 || len(s.Processes) != 4 {
		t.Errorf("status: %s", answer)
	}
	for _, c := range s.Children {
		if c.State != "running" || c.PID == 0 {
			t.Errorf("child: %+v", c)
		}
	}
	r.stop(nil)
	text, err := r.wait()
	if err != nil || !strings.Contains(text, "done: 1 request completed, 0 failed, 0 aborted, 0 past their deadline, 0 restarts; store clean") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
	for _, path := range []string{r.socket, s.HTTP} {
		if _, err := os.Lstat(path); err == nil {
			t.Errorf("%s is left behind", path)
		}
	}
}

func TestMetricsAndHealth(t *testing.T) {
	r := start(t, twoStages)
	r.await("ready: ")
	if got, err := r.submit(r.join(), "hello"); err != nil {
		t.Fatal(got, err)
	}
	at := strings.TrimSuffix(r.socket, ".sock") + ".http.sock"
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", at)
	}}}
	get := func(page string) (int, string) {
		t.Helper()
		resp, err := client.Get("http://localhost" + page)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz: %d %s", code, body)
	}
	if code, body := get("/healthz"); code != http.StatusOK {
		t.Errorf("/healthz: %d %s", code, body)
	}
	_, metrics := get("/metrics")
	for _, want := range []string{
		`omnibus_requests_total{result="completed"} 1`,
		`omnibus_edge_deliveries_total{edge="upper->again"} 1`,
		`omnibus_stage_processes{stage="upper"} 2`,
		`omnibus_process_up{process="again/0",stage="again"} 1`,
		`omnibus_process_held_deliveries{node="1",process=`,
		`omnibus_store_arena_bytes 2.68435456e+08`,
	} {
		if !strings.Contains(metrics, "\n"+want) {
			t.Errorf("no line %s in\n%s", want, metrics)
		}
	}
	if info, err := os.Stat(at); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the socket: %v, %v", info.Mode(), err)
	}
}

// An open request may end within the grace.
func TestDrainWaitsForRequests(t *testing.T) {
	r := start(t, twoStages, func(o *host.Options) { o.Grace = 1 << 40 })
	r.await("ready: ")
	req, err := r.join().Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Input(t.Context()).EmitBytes([]byte("one")); err != nil {
		t.Fatal(err)
	}
	r.stop(nil)
	r.await("draining: 1 request")
	if err := req.Input(t.Context()).EmitBytes([]byte("two"), bus.Last()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for d, err := range req.Results(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, string(d.Bytes()))
	}
	if strings.Join(got, " ") != "ONE TWO" {
		t.Errorf("got %q", got)
	}
	if text, err := r.wait(); err != nil || !strings.Contains(text, "done: 1 request completed, 0 failed") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// TestDrainEndsProcesses: a process that leaves when the host drains has no successor, even long before
// its stage is stopped.
func TestDrainEndsProcesses(t *testing.T) {
	r := start(t, `
stages:
  - {stage_id: `+lingering+`, omnibus: {exec: [SELF]}}
  - {stage_id: b, engine_input_source: [`+lingering+`], omnibus: {exec: [SELF]}}
`)
	r.await("ready: ")
	r.stop(nil)
	if text, err := r.wait(); err != nil || strings.Contains(text, "event=restarting") || strings.Count(text, "process=b/0 event=started") != 1 {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// Neither a request that does not end in time nor a process that makes no progress keeps the host from
// ending.
func TestGraceEnds(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF], grace: 10ms}}]", func(o *host.Options) { o.Grace = 1 })
	r.await("ready: ")
	n := r.join()
	ended := make(chan error, 1)
	go func() {
		_, err := r.submit(n, "hang")
		ended <- err
	}()
	r.stop(nil)
	if text, err := r.wait(); err != nil {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
	if err := <-ended; err == nil {
		t.Error("the request completed")
	}
}

func TestQuitEndsAtOnce(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF], grace: 1h}}]", func(o *host.Options) { o.Grace = 1 << 50 })
	r.await("ready: ")
	n := r.join()
	req, err := n.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := req.Input(t.Context()).EmitBytes([]byte("hang"), bus.Last()); err != nil {
		t.Fatal(err)
	}
	r.stop(nil)
	r.await("draining: ")
	close(r.quit)
	if text, err := r.wait(); !errors.Is(err, host.ErrQuit) {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// The processes that the host started keep their numbers, even if another process served their stage
// earlier.
func TestNumbers(t *testing.T) {
	r := start(t, `stages: [{stage_id: a, omnibus: {exec: [sh, -c, "echo here; until test -e now; do sleep 0.01; done; exec SELF"]}}]`)
	r.await("a/0 | here")
	n := r.join()
	go func() {
		_ = n.Serve(context.Background(), bus.Stage("a", func(_ *bus.Task, in string) (string, error) { return in, nil }))
	}()
	numbers := func() map[string]int {
		var s host.Status
		answer, err := n.Call(t.Context(), "status", nil)
		if err == nil {
			err = json.Unmarshal(answer, &s)
		}
		if err != nil {
			t.Fatal(err)
		}
		pids := make(map[string]int)
		for _, p := range s.Processes {
			for _, stage := range p.Stages {
				pids[stage] = p.PID
			}
		}
		for _, c := range s.Children {
			pids["child "+c.Name] = c.PID
		}
		return pids
	}
	pids := numbers()
	for pids["a/0"] == 0 && pids["a/1"] == 0 {
		pids = numbers()
	}
	if pids["a/0"] != 0 || pids["a/1"] != os.Getpid() {
		t.Fatalf("processes: %v", pids)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(r.socket), "now"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.await("ready: ")
	if pids = numbers(); pids["a/0"] == 0 || pids["a/0"] != pids["child a/0"] {
		t.Errorf("processes: %v", pids)
	}
	r.stop(nil)
	if _, err := r.wait(); err != nil {
		t.Error(err)
	}
}

// A process that dies is started again. Its requests fail with its death in their error.
func TestProcessDies(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF]}}]")
	r.await("ready: ")
	n := r.join()
	_, err := r.submit(n, "crash")
	var at *bus.StageError
	if !errors.As(err, &at) || at.Stage != "a" || !strings.Contains(err.Error(), "a/0: exit status 3; its last lines:\n  no such voice") {
		t.Fatalf("the request ended with %v", err)
	}
	if got, err := r.submit(n, "hello"); got != "HELLO" || err != nil {
		t.Errorf("after the restart: %q, %v", got, err)
	}
	r.stop(nil)
	if text, err := r.wait(); err != nil || !strings.Contains(text, "1 failed, 0 aborted, 0 past their deadline, 1 restart;") {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// unread is a writer whose reader has stopped reading.
type unread struct {
	tried chan struct{} // closed by the first write
	once  sync.Once
	over  chan struct{} // ends all writes
}

func (u *unread) Write([]byte) (int, error) {
	u.once.Do(func() { close(u.tried) })
	<-u.over
	return 0, io.ErrClosedPipe
}

// A reader that has stopped reading a run's output does not keep the run from ending.
func TestRunEndsThoughOutputIsUnread(t *testing.T) {
	u := &unread{tried: make(chan struct{}), over: make(chan struct{})}
	t.Cleanup(func() { close(u.over) })
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF]}}]", func(o *host.Options) {
		o.Outlet, o.Logger = host.NewOutlet(u), nil
	})
	<-u.tried // to say that it is ready
	r.stop(nil)
	if _, err := r.wait(); err != nil {
		t.Error(err)
	}
}

// A process that lives on without its connection is killed, since it delays its successor and the
// requests that wait for it.
func TestProcessWithoutConnectionIsKilled(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [SELF], start_timeout: 4s}}]")
	r.await("ready: ")
	n := r.join()
	_, _ = r.submit(n, "leave") // may fail, since the process leaves
	for restarted := false; !restarted; {
		got, err := r.submit(n, "hello")
		restarted = r.out.has("closed its connection, and has served no stage for 4s")
		if restarted && (got != "HELLO" || err != nil) { // before, the answer is that of the leaving process
			t.Errorf("after the restart: %q, %v", got, err)
		}
	}
	r.stop(nil)
	if text, err := r.wait(); err != nil {
		t.Errorf("the run ended with %v:\n%s", err, text)
	}
}

// When no process serves a stage any more, its requests fail instead of waiting, and the host goes on.
// The run then fails, unless a process serves the stage again, or there is a main process, whose exit
// code counts.
func TestStageGivenUp(t *testing.T) {
	for name, tc := range map[string]struct {
		file  string
		again bool
		fails bool
	}{
		"alone":        {fails: true},
		"served again": {again: true},
		"with main":    {file: "omnibus: {main: [SELF, wait]}\n"},
	} {
		r := start(t, tc.file+"stages: [{stage_id: a, omnibus: {exec: [SELF], restart: never}}]")
		r.await("ready: ")
		n := r.join()
		if _, err := r.submit(n, "crash"); err == nil {
			t.Fatal("the request completed")
		}
		if _, err := r.submit(n, "hello"); err == nil || !strings.Contains(err.Error(), "no process serves it any more: a/0: given up: its restart policy is never; last: exit status 3; its last lines:\n  no such voice\nomnibus restart a starts it again") {
			t.Errorf("%s: the request ended with %v", name, err)
		}
		if tc.again {
			echo := func(t *bus.Task, d *bus.Delivery) error { return t.EmitBytes(d.Bytes()) }
			go func() { _ = n.Serve(context.Background(), bus.StageSpec{Name: "a", Handle: echo}) }() // ends with the node
			for got := ""; got != "hello"; {
				got, _ = r.submit(n, "hello") // which fails until it is served
			}
		}
		r.stop(nil)
		_, err := r.wait()
		if !tc.fails && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if tc.fails && (err == nil || !strings.Contains(err.Error(), `stage "a" was given up, and requests that needed it failed: a/0: given up: its restart policy is never`)) {
			t.Errorf("%s: the run ended with %v", name, err)
		}
	}
}

func TestMainEndsTheRun(t *testing.T) {
	const file = "omnibus: {main: [SELF, exit, '%d']}\nstages: [{stage_id: a, omnibus: {exec: [SELF]}}]"
	if text, err := start(t, fmt.Sprintf(file, 0)).wait(); err != nil || !strings.Contains(text, "done: ") {
		t.Errorf("%v\n%s", err, text)
	}
	_, err := start(t, fmt.Sprintf(file, 7)).wait()
	var failed *host.MainError
	if !errors.As(err, &failed) || failed.Code != 7 {
		t.Errorf("got %v", err)
	}
}

// A main process that ends when it is told to is no failure.
func TestDrainEndsMain(t *testing.T) {
	r := start(t, "omnibus: {main: [SELF, wait]}\nstages: [{stage_id: a, omnibus: {exec: [SELF]}}]")
	r.await("ready: ")
	if _, err := r.join().Call(t.Context(), "drain", nil); err != nil {
		t.Fatal(err)
	}
	if text, err := r.wait(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// After an interrupt at the terminal the main process may be dead before the host notices the signal.
func TestInterruptEndsMain(t *testing.T) {
	on := filepath.Join(t.TempDir(), "on")
	r := start(t, fmt.Sprintf(`
omnibus: {main: [sh, -c, "kill -INT $$"]}
stages: [{stage_id: a, omnibus: {grace: 1h, exec: [sh, -c, "trap : TERM; SELF; echo over; until [ -e %s ]; do :; done"]}}]
`, on))
	r.await("a/0 | over")
	r.stop(host.Interrupt{})
	if err := os.WriteFile(on, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if text, err := r.wait(); err != nil {
		t.Errorf("%v\n%s", err, text)
	}
}

// TestSlowStartIsReported: while a start waits, a line names the stages that are not ready.
func TestSlowStartIsReported(t *testing.T) {
	r := start(t, "stages: [{stage_id: a, omnibus: {exec: [sh, -c, 'sleep 60']}}, {stage_id: b, omnibus: {attach: true}}]",
		func(o *host.Options) { o.StartReport = 10 * time.Millisecond })
	r.await(`starting for 0s: stage "a": its process a/0 has not served it yet (start_timeout 10m0s); stage "b": no process has attached yet (start_timeout 10m0s)`)
	r.stop(host.Interrupt{})
	if text, err := r.wait(); err == nil {
		t.Errorf("the run ended well:\n%s", text)
	}
}

func TestStartsThatFail(t *testing.T) {
	for _, tt := range []struct{ name, file, want string }{
		{"no such program", "stages: [{stage_id: a, omnibus: {exec: [./nosuch]}}]", `stage "a": child: start a/0: there is no file`},
		{"ends at once", "stages: [{stage_id: a, omnibus: {exec: [sh, -c, 'echo no model; exit 7']}}]", "exit status 7; its last lines:\n  no model"},
		{"ends well at once", "stages: [{stage_id: a, omnibus: {exec: ['true']}}]", "exit status 0; it printed nothing"},
		{"never ready", "stages: [{stage_id: a, omnibus: {exec: [sh, -c, 'sleep 60'], start_timeout: 10ms}}]", "never became ready within 10ms, its start_timeout"},
		{"no process attaches", "stages: [{stage_id: a, omnibus: {attach: true, start_timeout: 10ms}}]", "no process attached within 10ms, its start_timeout: start a process that serves it, with OMNIBUS_SOCKET="},
		{"no main", "omnibus: {main: [./nosuch]}\nstages: [{stage_id: a, omnibus: {exec: [SELF]}}]", "the main process: "},
		{"a stage without a handler", "stages: [{stage_id: a}]", "1:21: stage a: nothing does its work"},
		{"a graph that cannot be", "omnibus: {ring_bytes: 1MiB, max_requests: 10000}\nstages: [{stage_id: a, omnibus: {attach: true}}]", "ring_bytes or max_requests, under omnibus, max_inflight of a stage, or window_bytes of an edge: bus: invalid configuration: the byte windows do not fit the store"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := start(t, tt.file)
			text, err := r.wait()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %s", err, tt.want)
			}
			if strings.Contains(text, "ready: ") || strings.Contains(text, "done: ") {
				t.Errorf("it printed\n%s", text)
			}
			if _, err := os.Lstat(r.socket); err == nil {
				t.Error("the socket is left behind")
			}
		})
	}
}
