//go:build unix

package child

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func init() {
	// A process holds a FIFO open, which shows that it lives.
	roles["hold"] = func(args []string) {
		signal.Ignore(unix.SIGTERM)
		roles["hold politely"](args)
	}
	roles["hold politely"] = func(args []string) {
		fifo, err := os.OpenFile(args[0], os.O_WRONLY, 0)
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		fmt.Fprintln(fifo, os.Getpid())
		fmt.Fprintln(os.Stdout, "up")
		select {}
	}
	roles["parent"] = func(args []string) {
		descend("hold", args[0], nil)
		roles["idle"](nil)
	}
	roles["deaf parent"] = func(args []string) {
		descend("hold politely", args[0], nil)
		roles["deaf"](nil)
	}
	roles["dying"] = func(args []string) {
		descend("hold", args[0], nil)
		os.Exit(3)
	}
	roles["escape"] = func(args []string) {
		descend("hold", args[0], &syscall.SysProcAttr{Setsid: true})
		fmt.Fprint(os.Stdout, "the pipe is held")
	}
	roles["suicide"] = func([]string) {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		select {}
	}
	roles["where"] = func(args []string) {
		dir, _ := os.Getwd()
		rest, err := io.ReadAll(os.Stdin)
		fmt.Fprintln(os.Stdout, filepath.Base(dir), os.Getenv("STAGE"), os.Getenv("PWD") == dir, len(rest), err)
	}
}

// descend starts a descendant that holds the FIFO and the standard error of this process, and returns
// when the descendant runs.
func descend(role, fifo string, attr *syscall.SysProcAttr) {
	cmd := exec.Command(os.Args[0], fifo)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr, cmd.SysProcAttr = os.Stderr, attr
	out, _ := cmd.StdoutPipe()
	if err := cmd.Start(); err != nil {
		fmt.Fprintln(os.Stdout, err)
		return
	}
	_, _ = bufio.NewReader(out).ReadString('\n')
}

// A holder is the reading end of the FIFO that a process holds.
type holder struct {
	t    *testing.T
	path string
	file *os.File
	pid  int
}

func newHolder(t *testing.T) *holder {
	t.Helper()
	path := filepath.Join(t.TempDir(), "held")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// Not blocking, since the process that opens it has not started.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	h := &holder{t: t, path: path, file: f}
	t.Cleanup(func() { _ = f.Close() })
	return h
}

// lives reads the pid of the process, which must hold the FIFO by now.
func (h *holder) lives() int {
	h.t.Helper()
	line, err := bufio.NewReader(h.file).ReadString('\n')
	if err != nil {
		h.t.Fatal("no process holds the FIFO:", err)
	}
	h.pid, _ = strconv.Atoi(strings.TrimSpace(line))
	h.t.Cleanup(func() {
		if h.pid != 0 {
			_ = unix.Kill(h.pid, unix.SIGKILL) // it escaped, which the test has reported
		}
	})
	return h.pid
}

// dies waits until the process is dead.
func (h *holder) dies() {
	h.t.Helper()
	_ = h.file.SetReadDeadline(time.Now().Add(patience))
	if _, err := io.ReadAll(h.file); err != nil {
		h.t.Fatalf("process %d lives on: %v", h.pid, err)
	}
	h.pid = 0
}

// held reports whether the process lives now.
func (h *holder) held() bool {
	var b [1]byte
	_ = h.file.SetReadDeadline(time.Time{})
	raw, err := h.file.SyscallConn()
	if err != nil {
		h.t.Fatal(err)
	}
	var readErr error
	_ = raw.Read(func(fd uintptr) bool {
		_, readErr = unix.Read(int(fd), b[:])
		return true
	})
	return errors.Is(readErr, unix.EAGAIN)
}

func TestOutput(t *testing.T) {
	tests := []struct {
		name, role string
		args       []string
		want       []string // the last lines of the death
	}{
		{name: "nothing", role: "print"},
		{name: "lines", role: "print", args: []string{"one\n", "two\n"}, want: []string{"one", "two"}},
		{name: "no end of line", role: "print", args: []string{"one\n", "half"}, want: []string{"one", "half"}},
		{name: "garbage", role: "print", args: []string{"\x1b[2J\xff\n"}, want: []string{`\x1b[2J\xff`}},
		{
			name: "a long line", role: "longline", args: []string{"1048576"},
			want: []string{strings.Repeat("x", 4096) + " ... (1044480 bytes cut)"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			r.ended(r.start(play(t, test.role, test.args...)))
			r.next(EventStarted)
			death := r.next(EventExited).Death
			if diff := cmp.Diff(test.want, death.Lines, equateEmpty); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
			var text strings.Builder
			for _, line := range test.want {
				fmt.Fprintf(&text, "%s | %s\n", test.role, line)
			}
			if diff := cmp.Diff(text.String(), r.tape.String()); diff != "" {
				t.Errorf("out (-want +got):\n%s", diff)
			}
		})
	}
}

var equateEmpty = cmp.Transformer("empty", func(lines []string) []string { return append([]string{}, lines...) })

func TestFlood(t *testing.T) {
	const n = 200_000
	r := newRig(t)
	c := r.start(play(t, "flood", strconv.Itoa(n)))
	r.ended(c)
	lines := c.Status().Lines
	if len(lines) != 50 || lines[0] != fmt.Sprintf("line %d", n-50) || lines[49] != fmt.Sprintf("line %d", n-1) {
		t.Errorf("kept %d lines: %q", len(lines), lines)
	}
	if got := strings.Count(r.tape.String(), "\n"); got != n {
		t.Errorf("%d lines came out, want %d", got, n)
	}
}

func TestLinesStayWhole(t *testing.T) {
	r := newRig(t)
	var children []*Child
	want := map[string]int{}
	for i := range 4 {
		s := play(t, "both", strings.Repeat(strconv.Itoa(i), 300))
		s.Name = fmt.Sprintf("talker/%d", i)
		want[s.Name+" | "+s.Args[1]] = 200 // a hundred on each stream
		children = append(children, r.start(s))
	}
	for _, c := range children {
		r.ended(c)
	}
	got := map[string]int{}
	for line := range strings.Lines(r.tape.String()) {
		got[strings.TrimSuffix(line, "\n")]++
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
}

func TestExits(t *testing.T) {
	tests := []struct {
		name, role string
		args       []string
		last       Kind
		cause      string // contained in the cause of the death
		code       int
	}{
		{name: "well", role: "exit", args: []string{"0"}, last: EventDone, cause: "exit status 0"},
		{name: "badly", role: "exit", args: []string{"3"}, last: EventGaveUp, cause: "exit status 3", code: 3},
		{name: "by a signal", role: "suicide", last: EventGaveUp, cause: "signal: killed, and not by this host", code: -1},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			c := r.start(play(t, test.role, test.args...))
			pid := r.next(EventStarted).PID
			death := r.next(EventExited).Death
			r.next(test.last)
			r.ended(c)
			if death.PID != pid || death.Code != test.code || !strings.Contains(death.Cause(), test.cause) {
				t.Errorf("death of %d: %+v", pid, death)
			}
			again, ok := r.Autopsy(t.Context(), pid)
			if diff := cmp.Diff(*death, again); diff != "" || !ok {
				t.Errorf("autopsy: %t (-event +autopsy):\n%s", ok, diff)
			}
		})
	}
}

func TestCrashLoop(t *testing.T) {
	r := newRig(t)
	s := play(t, "exit", "3")
	s.Restart, s.Backoff = OnFailure, Backoff{First: time.Millisecond, Limit: 2}
	c := r.start(s)
	r.ended(c)
	for range 2 {
		r.next(EventStarted)
		r.next(EventExited)
		r.next(EventRestarting)
	}
	r.next(EventStarted)
	r.next(EventExited)
	e := r.next(EventGaveUp)
	if e.Restarts != 2 || e.Death.Code != 3 || !slices.Equal(e.Death.Lines, []string{"last words"}) {
		t.Errorf("event %+v with %+v", e, e.Death)
	}
	if got := c.Status(); got.State != Failed || got.Restarts != 2 || got.LastExit != e.Death || got.Err == nil {
		t.Errorf("status %+v", got)
	}
}

func TestNeverReady(t *testing.T) {
	r := newRig(t)
	s := play(t, "deaf")
	s.StartTimeout = time.Millisecond
	r.ended(r.start(s))
	r.next(EventStarted)
	want := "never became ready within 1ms, its start_timeout (signal: killed)"
	if got := r.next(EventExited).Death.Cause(); got != want {
		t.Errorf("cause %q, want %q", got, want)
	}
}

func TestReadyThenStop(t *testing.T) {
	r := newRig(t)
	c := r.start(play(t, "idle"))
	pid := r.next(EventStarted).PID
	r.tape.wait(t, "up\n")
	if got, ok := r.Find(pid); got != c || !ok {
		t.Errorf("Find(%d) = %v", pid, got)
	}
	for _, other := range []int{0, -1, -pid, 1, os.Getpid()} {
		if c.Ready(other) {
			t.Errorf("Ready(%d) of a process that is not the child's", other)
		}
		if _, ok := r.Find(other); ok {
			t.Errorf("Find(%d)", other)
		}
	}
	for _, time := range []string{"first", "second"} {
		if !c.Ready(pid) {
			t.Errorf("Ready refused the %s time", time)
		}
	}
	r.next(EventReady)
	if got := c.Status(); got.State != Running || got.PID != pid || !slices.Equal(got.Lines, []string{"up"}) {
		t.Errorf("status %+v", got)
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if got := r.next(EventExited).Death; got.Cause() != "stopped (exit status 0)" || !slices.Equal(got.Lines, []string{"up", "bye"}) {
		t.Errorf("death %+v", got)
	}
	r.next(EventStopped)
}

func TestStopKillsAProcessThatIgnoresSIGTERM(t *testing.T) {
	r := newRig(t)
	s := play(t, "deaf")
	s.Grace = time.Millisecond
	c := r.start(s)
	r.tape.wait(t, "up\n")
	if err := c.Stop(t.Context()); err != nil {
		t.Error(err)
	}
	r.next(EventStarted)
	if got := r.next(EventExited).Death.Cause(); got != "stopped (signal: killed)" {
		t.Errorf("cause %q", got)
	}
}

// A descendant that ignores SIGTERM ends with the process that was stopped.
func TestStopTakesTheGroup(t *testing.T) {
	r, h := newRig(t), newHolder(t)
	c := r.start(play(t, "parent", h.path))
	r.tape.wait(t, "up\n")
	descendant := h.lives()
	if got, ok := r.Find(descendant); got != c || !ok {
		t.Errorf("Find(%d), a descendant: %v", descendant, got)
	}
	if !c.Ready(descendant) {
		t.Error("a descendant cannot become ready")
	}
	if err := c.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	h.dies()
	if got, ok := r.Autopsy(t.Context(), descendant); !ok || got.Cause() != "stopped (exit status 0)" {
		t.Errorf("autopsy of the descendant: %+v", got)
	}
}

// The whole group is asked to end, not only the process that was started.
func TestStopAsksTheGroup(t *testing.T) {
	r, h := newRig(t), newHolder(t)
	s := play(t, "deaf parent", h.path)
	s.Grace = patience
	c := r.start(s)
	r.tape.wait(t, "up\n")
	h.lives()
	stopped := make(chan error, 1)
	go func() { stopped <- c.Stop(context.Background()) }()
	h.dies()
	if got := c.Status(); got.State != Stopping || got.PID == 0 {
		t.Errorf("the process was to outlive its descendant: %+v", got)
	}
	c.Kill("enough")
	if err := <-stopped; err != nil {
		t.Error(err)
	}
}

// A descendant ends with the process that started it, however that process ends.
func TestDeathTakesTheGroup(t *testing.T) {
	r, h := newRig(t), newHolder(t)
	c := r.start(play(t, "dying", h.path))
	r.ended(c)
	h.lives()
	h.dies()
	if got := c.Status().LastExit; got.Code != 3 {
		t.Errorf("death %+v", got)
	}
}

// A descendant that left the group holds the pipe. It escapes, and Stop does not wait for it.
func TestEscapedDescendant(t *testing.T) {
	r, h := newRig(t), newHolder(t)
	c := r.start(play(t, "escape", h.path))
	r.ended(c)
	if got := c.Status().Lines; !slices.Equal(got, []string{"the pipe is held"}) {
		t.Errorf("lines %q", got)
	}
	h.lives()
	if !h.held() {
		t.Error("the descendant is dead; this test shows nothing")
	}
}

func TestSurroundings(t *testing.T) {
	t.Setenv("STAGE", "that of the host")
	dir := filepath.Join(t.TempDir(), "work")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	s := play(t, "where")
	if err := os.Symlink(s.Args[0], filepath.Join(dir, "program")); err != nil {
		t.Fatal(err)
	}
	s.Dir = dir
	s.Env = append(s.Env, "STAGE=wrong", "STAGE=talker")
	const want = "where | work talker true 0 <nil>\n"
	tests := []struct {
		name, program string
		env           string
	}{
		{name: "absolute", program: s.Args[0]},
		{name: "relative to the directory", program: "./program"},
		{name: "in the PATH of the child", program: "program", env: "PATH=relative:/nowhere:" + dir},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, s := newRig(t), s
			s.Args = []string{test.program}
			if test.env != "" {
				s.Env = append(slices.Clone(s.Env), test.env)
			}
			r.ended(r.start(s))
			if got := r.tape.String(); got != want {
				t.Errorf("printed %q, want %q", got, want)
			}
		})
	}
}

// Closing a manager leaves no process, no descriptor and no goroutine.
func TestCloseLeavesNothing(t *testing.T) {
	cycle := func(t *testing.T) {
		r, h := newRig(t), newHolder(t)
		defer h.file.Close()
		loop := play(t, "exit", "1")
		loop.Restart, loop.Backoff = Always, Backoff{First: time.Millisecond, Max: time.Millisecond, Limit: -1}
		r.start(loop)
		r.start(play(t, "deaf"))
		r.start(play(t, "parent", h.path))
		_, _ = r.Start(Spec{Name: "absent", Args: []string{"/does/not/exist"}})
		r.tape.wait(t, "parent | up\n")
		h.lives()
		now, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.Close(now); err != nil {
			t.Error(err)
		}
		h.dies()
	}
	cycle(t) // opens what the runtime keeps open
	before, running := descriptors(t), goleak.IgnoreCurrent()
	for range 3 {
		cycle(t)
	}
	goleak.VerifyNone(t, running)
	if after := descriptors(t); after != before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
	if pid, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); !errors.Is(err, unix.ECHILD) {
		t.Errorf("there are still children, dead or alive: pid %d, %v", pid, err)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/dev/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// TestKillDoesNotWaitForEvents: Kill kills a process's group while OnEvent hangs, and nothing is
// started afterwards.
func TestKillDoesNotWaitForEvents(t *testing.T) {
	h := newHolder(t)
	said := &tape{changed: make(chan struct{})}
	handled := make(chan struct{})
	var kinds []Kind
	m := New(Options{Out: said, OnEvent: func(e Event) {
		<-handled
		kinds = append(kinds, e.Kind)
	}})
	s := play(t, "parent", h.path)
	s.Restart = Always
	c, err := m.Start(s)
	if err != nil {
		t.Fatal(err)
	}
	said.wait(t, "up\n")
	h.lives()
	m.Kill("it hangs")
	h.dies()
	if _, err := m.Start(s); !errors.Is(err, ErrClosed) {
		t.Errorf("another start: %v", err)
	}
	close(handled)
	if err := m.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if want := []Kind{EventStarted, EventExited, EventStopped}; !slices.Equal(kinds, want) {
		t.Errorf("events %v, want %v", kinds, want)
	}
	if d := c.Status().LastExit; d == nil || d.Reason != "it hangs" {
		t.Errorf("its death: %+v", d)
	}
}
