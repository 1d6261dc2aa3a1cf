package load

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/node"
)

// A run is one cell under load.
type run struct {
	cell     *cell
	seed     uint64 // of the cell
	requests int
	bound    time.Duration
	fault    string
	faultAt  string

	dir     string
	log     func(format string, args ...any)
	checker *checker
	host    *process
	stages  []*process
	callers []*process
	events  chan event
	exits   chan *process
	gates   []*os.File    // open gates
	over    chan struct{} // closed when the run ends

	stageBlocked <-chan struct{} // closed when the slow stage of a gated cell blocks; nil: it has no quick requests
}

// An event is a line of a caller, or the error that stopped it.
type event struct {
	line string
	err  error
}

// A process is a process that this test started.
type process struct {
	name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	ended chan struct{}
	err   error // how it ended; set before ended is closed
}

// errHang reports that no request makes progress, or that a process does not react.
var errHang = errors.New("no progress")

func (r *run) socket() string { return filepath.Join(r.dir, "s") }

// do runs the cell. All processes that it started are dead when it returns.
func (r *run) do() (err error) {
	r.checker = newChecker(r.cell, r.cell.plans(r.seed, r.requests))
	r.events, r.exits, r.over = make(chan event), make(chan *process), make(chan struct{})
	defer close(r.over)
	defer func() {
		err = errors.Join(err, r.killAll(err))
		for _, g := range r.gates {
			_ = g.Close()
		}
	}()
	if err := r.start(); err != nil {
		return fmt.Errorf("start: %w", err)
	}
	if err := r.load(); err != nil {
		return r.explained(err)
	}
	if err := r.awaitNothingHeld(); err != nil {
		return r.explained(err)
	}
	return r.explained(r.stop())
}

func (r *run) explained(err error) error {
	if errors.Is(err, errHang) {
		r.dump()
	}
	return err
}

// stageCommand returns the command line of a stage's process, and its environment.
func (r *run) stageCommand(kind string) ([]string, map[string]string) {
	env := r.environment("stage")
	env["OMNIBUS_LOAD_KIND"], env["OMNIBUS_LOAD_SLOW"] = kind, r.cell.slowStage()
	if python(kind) {
		return pythonCommand("stage.py"), env
	}
	return []string{self()}, env
}

func (r *run) environment(role string) map[string]string {
	return map[string]string{
		roleEnv: role, cellEnv: r.cell.String(), dirEnv: r.dir, faultEnv: r.fault, faultAtEnv: r.faultAt,
		"PYTHONPATH": pythonPath(), "PYTHONDONTWRITEBYTECODE": "1",
	}
}

// self is the path of this test binary, which is the program in Go for every role.
func self() string {
	path, err := os.Executable()
	if err != nil {
		panic(err)
	}
	return path
}

func pythonPath() string {
	path, err := filepath.Abs(filepath.Join("..", "..", "clients", "python", "src"))
	if err != nil {
		panic(err)
	}
	return path
}

func pythonCommand(script string) []string {
	path, err := filepath.Abs(filepath.Join("testdata", script))
	if err != nil {
		panic(err)
	}
	return []string{"python3", path}
}

// command starts a process. Its standard error goes to a file with its name, or to
// errs.
func (r *run) command(name string, args []string, env map[string]string, out io.Writer) (*process, error) {
	p := &process{name: name, cmd: exec.Command(args[0], args[1:]...), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), "GOTRACEBACK=all", dirEnv+"="+r.dir)
	p.cmd.Env = append(p.cmd.Env, node.EnvSocket+"="+r.socket(), node.EnvBus+"=load")
	for k, v := range env {
		p.cmd.Env = append(p.cmd.Env, k+"="+v)
	}
	errs, err := os.Create(filepath.Join(r.dir, name+".log"))
	if err != nil {
		return nil, err
	}
	defer errs.Close()
	p.cmd.Stderr, p.cmd.Stdout = errs, out
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
		select {
		case r.exits <- p:
		case <-r.over:
		}
	}()
	return p, nil
}

// wait waits for the end of a process, within the bound.
func (r *run) wait(p *process) error {
	select {
	case <-p.ended:
		if p.err != nil {
			return fmt.Errorf("%s: %w: %s", p.name, p.err, r.tail(p.name))
		}
		return nil
	case <-time.After(r.bound):
		return fmt.Errorf("%w: %s does not end", errHang, p.name)
	}
}

// tail is the end of a process's standard error.
func (r *run) tail(name string) string {
	text, err := os.ReadFile(filepath.Join(r.dir, name+".log"))
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-2000):])
}

// start starts the host, then the stages that attach, then the callers.
func (r *run) start() error {
	if err := r.makeGates(); err != nil {
		return err
	}
	path, err := r.writePipeline()
	if err != nil {
		return err
	}
	args, env, out := []string{omnibus(), "run", path}, map[string]string(nil), io.Writer(nil)
	if r.cell.program() {
		args, env = []string{self()}, r.environment("host")
		env[pipelineEnv], env[socketEnv] = path, r.socket()
	}
	if r.cell[dimCaller] == callerHost {
		env[concurrencyEnv], out = strconv.Itoa(r.cell.concurrency()), r.lines()
	}
	if r.host, err = r.command("host", args, env, out); err != nil {
		return err
	}
	if err := r.awaitReady(); err != nil {
		return err
	}
	if r.cell.program() {
		if err := r.attachStages(); err != nil {
			return err
		}
	}
	return r.startCallers()
}

// awaitReady waits for the host's line.
func (r *run) awaitReady() error {
	limit := time.Now().Add(r.bound + 5*time.Minute) // a machine may be busy, and compile Python's files
	for time.Now().Before(limit) {
		text, err := os.ReadFile(filepath.Join(r.dir, "host.log"))
		if err != nil {
			return err
		}
		if strings.HasPrefix(string(text), readyLine) || strings.Contains(string(text), "\n"+readyLine) {
			return nil
		}
		select {
		case <-r.host.ended:
			return fmt.Errorf("the host has ended: %w: %s", r.host.err, r.tail("host"))
		case <-time.After(10 * time.Millisecond):
		}
	}
	return fmt.Errorf("%w: the host is not ready: %s", errHang, r.tail("host"))
}

func (r *run) attachStages() error {
	replicas, _ := r.cell.slots()
	for _, name := range r.cell.stages() {
		if hosted(r.cell.kind(name)) {
			continue
		}
		args, env := r.stageCommand(r.cell.kind(name))
		env[node.EnvStage] = name
		for i := range replicas {
			p, err := r.command(fmt.Sprintf("%s-%d", name, i), args, env, nil)
			if err != nil {
				return err
			}
			r.stages = append(r.stages, p)
		}
	}
	return r.awaitAttached()
}

// awaitAttached waits until each stage is served: a process would fail if its host ended before it
// attached.
func (r *run) awaitAttached() error {
	for limit := time.Now().Add(r.bound + startPatience); time.Now().Before(limit); {
		s, err := r.status()
		if err != nil {
			return err
		}
		serving := 0
		for _, p := range s.Processes {
			serving += len(p.Stages)
		}
		if serving == len(r.stages) {
			return nil
		}
		select {
		case p := <-r.exits:
			return r.endedEarly(p)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return fmt.Errorf("%w: the stages do not attach", errHang)
}

// endedEarly is the error of a process that has ended before the test ended it.
func (r *run) endedEarly(p *process) error {
	return fmt.Errorf("%s has ended: %w: %s", p.name, p.err, r.tail(p.name))
}

// lines returns a writer that reports the lines of a caller.
func (r *run) lines() io.Writer {
	in, out := io.Pipe()
	go func() {
		for s := bufio.NewScanner(in); s.Scan(); {
			r.report(event{line: s.Text()})
		}
	}()
	return out
}

func (r *run) report(e event) {
	select {
	case r.events <- e:
	case <-r.over:
	}
}

// callerProcesses is how many processes share the requests of a cell, if more than one is open at a time.
const callerProcesses = 2

// startCallers starts the callers, and sends them their plans.
func (r *run) startCallers() error {
	var args []string
	switch r.cell[dimCaller] {
	case callerHost:
		r.sendPlans(r.host, r.checker.plans)
		return nil
	case callerCommand:
		r.startCommands()
		return nil
	case callerNode:
		args = []string{self()}
	case callerPython:
		args = pythonCommand("caller.py")
	case callerAsyncio:
		args = pythonCommand("caller_async.py")
	}
	n := min(callerProcesses, r.cell.concurrency())
	for i := range n {
		env := r.environment("caller")
		env[concurrencyEnv] = strconv.Itoa((r.cell.concurrency() + i) / n)
		p, err := r.command(fmt.Sprintf("caller-%d", i), args, env, r.lines())
		if err != nil {
			return err
		}
		r.callers = append(r.callers, p)
		var share []plan
		for at := i; at < len(r.checker.plans); at += n {
			share = append(share, r.checker.plans[at])
		}
		r.sendPlans(p, share)
	}
	return nil
}

// sendPlans writes plans to a caller. Its standard input stays open, which keeps it attached, until
// stop closes it.
func (r *run) sendPlans(p *process, plans []plan) {
	go func() {
		out := bufio.NewWriter(p.stdin)
		enc := json.NewEncoder(out)
		stands := r.stageBlocked == nil || r.fault != faultEnd // otherwise the slow requests may end before they reach the stage
		for i := range plans {
			if !stands && plans[i].quick() { // the slow requests are first
				_ = out.Flush()
				select {
				case <-r.stageBlocked:
					stands = true
				case <-r.over:
					return
				}
			}
			if enc.Encode(&plans[i]) != nil {
				return // the caller has ended, which load reports
			}
		}
		_ = out.Flush()
	}()
}

// startPatience is how long processes may take to start, on a busy machine.
const startPatience = time.Minute

// load waits until all requests have ended. It returns the first error of a request.
func (r *run) load() error {
	moved := time.NewTimer(r.bound + startPatience)
	defer moved.Stop()
	for r.checker.ended < len(r.checker.plans) {
		select {
		case e := <-r.events:
			if e.err != nil {
				return e.err
			}
			if err := r.handleLine(e.line); err != nil {
				return err
			}
			moved.Reset(r.bound)
		case p := <-r.exits:
			return r.endedEarly(p)
		case <-moved.C:
			k := r.checker
			return fmt.Errorf("%w for %v: %d requests have ended, %d are open, %d to come: first of those open: %+v",
				errHang, r.bound, k.ended, k.open, len(k.plans)-k.ended-k.open, first(k.waiting(), 5))
		}
	}
	return nil
}

func first[T any](all []T, n int) []T { return all[:min(n, len(all))] }

// handleLine handles a line of a caller.
func (r *run) handleLine(line string) error {
	var number int
	if n, _ := fmt.Sscanf(line, "open %d", &number); n == 1 {
		return r.checker.beginRequest(number)
	}
	var outcome, list string
	if n, err := fmt.Sscanf(line, "end %d %q %s", &number, &outcome, &list); n < 2 {
		return fmt.Errorf("a caller says %q: %w", line, err)
	}
	var sums []uint32
	for _, text := range strings.FieldsFunc(list, func(r rune) bool { return r == ',' }) {
		sum, err := strconv.ParseUint(text, 10, 32)
		if err != nil {
			return fmt.Errorf("a caller says %q: %w", line, err)
		}
		sums = append(sums, uint32(sum))
	}
	if err := r.checker.endRequest(number, outcome, sums); err != nil {
		return err
	}
	return r.openGates(number)
}

// stop ends the callers, and the host by one SIGTERM, and checks that nothing is left.
func (r *run) stop() error {
	for _, p := range append(r.callers, r.host) {
		_ = p.stdin.Close()
	}
	for _, p := range r.callers {
		if err := r.wait(p); err != nil {
			return err
		}
	}
	if err := r.awaitNothingHeld(); err != nil {
		return fmt.Errorf("after the callers have ended: %w", err)
	}
	_ = r.host.cmd.Process.Signal(syscall.SIGTERM)
	if err := r.wait(r.host); err != nil {
		return err
	}
	for _, p := range r.stages {
		if err := r.wait(p); err != nil {
			return err
		}
	}
	if left := r.processes(); len(left) > 0 {
		return fmt.Errorf("processes are left: %v", left)
	}
	return nil
}

// killAll kills the processes of the cell that are left, and removes its folder unless it failed.
func (r *run) killAll(failed error) error {
	for range 100 {
		all := r.processes()
		if len(all) == 0 {
			break
		}
		for _, p := range all {
			_ = unix.Kill(p.pid, unix.SIGKILL)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if failed == nil {
		return os.RemoveAll(r.dir)
	}
	return nil
}

// newRun makes a run with a folder of its own, with a path short enough for sockets.
func newRun(t *testing.T, c *cell, seed uint64, requests int) *run {
	t.Helper()
	dir, err := os.MkdirTemp("", "load") //nolint:usetesting // the folder of a failed cell stays
	if err != nil {
		t.Fatal(err)
	}
	return &run{cell: c, seed: seed, requests: requests, bound: *boundFlag, dir: dir, log: t.Logf}
}
