package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/omnibus-runtime/omnibus/bench"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"omnibus-bench": main})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){"exits": exits},
	})
}

// exits runs a command and checks its exit code: exits CODE PROGRAM ARGS...
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	code := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		var exit *exec.ExitError
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		code = exit.ExitCode()
	}
	if code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

func TestJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"--quick", "-o", "json", "--run", "^mailbox/senders=1$"}
	if code := run(args, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if got, want := stderr.String(), "1/1 mailbox/senders=1\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	var report bench.Report
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&report); err != nil {
		t.Fatal(err)
	}
	if !report.Quick || report.Machine.Go != runtime.Version() || len(report.Results) != 1 {
		t.Fatalf("got %+v", report)
	}
	r := report.Results[0]
	if r.Name != "mailbox/senders=1" || r.Unit != "ns" || r.Value <= 0 || r.Rounds < 1 ||
		r.Baseline == nil || *r.Baseline <= 0 || r.Ratio == nil || *r.Ratio <= 0 ||
		r.TargetOf != "ratio" || !cmp.Equal(r.Target, new(1.2)) || r.Met == nil {
		t.Errorf("got %+v", r)
	}
}

// An interrupter interrupts this process when it is first written to.
type interrupter struct {
	bytes.Buffer
	t *testing.T
}

func (i *interrupter) Write(p []byte) (int, error) {
	if i.Len() == 0 {
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Signal(os.Interrupt)
		}
		if err != nil {
			i.t.Errorf("interrupt: %v", err)
		}
	}
	return i.Buffer.Write(p)
}

// TestInterrupted interrupts at the first line of progress, when ten idle
// seconds are about to begin.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot interrupt itself")
	}
	var stdout bytes.Buffer
	stderr := &interrupter{t: t}
	if code := run([]string{"--run", "^idle/cpu$"}, &stdout, stderr); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if got, want := stderr.String(), "1/1 idle/cpu\nomnibus-bench: interrupted\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	if got := stdout.String(); !strings.HasPrefix(got, runtime.Version()+", ") || strings.Contains(got, "NAME") {
		t.Errorf("standard output is %q, want the machine and no figures", got)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatFails(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		var stderr bytes.Buffer
		args := []string{"--quick", "--run", "^mailbox/ping-pong$", "-o", form}
		if code := run(args, brokenPipe{}, &stderr); code != exitFailed || !strings.HasSuffix(stderr.String(), "\nomnibus-bench: broken pipe\n") {
			t.Errorf("%s: exit code %d, standard error %q", form, code, &stderr)
		}
	}
}

// TestAdvice says what to do where a limit of the system was met.
func TestAdvice(t *testing.T) {
	for err, want := range map[error]string{
		syscall.ENOMEM: "make the store smaller (--store-bytes)",
		syscall.EMFILE: "ulimit -n",
		io.EOF:         "EOF",
	} {
		if got := withAdvice(err).Error(); !strings.Contains(got, want) {
			t.Errorf("%v: %q does not say %q", err, got, want)
		}
	}
}
