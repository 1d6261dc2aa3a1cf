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
	if runtime.GOOS != "linux" {
		t.Skip("the processes of a side share memory on Linux alone")
	}
	var stdout, stderr bytes.Buffer
	args := []string{"-o", "json", "--rounds", "1", "--slice", "1ms", "--run", "^in-process/requests"}
	if code := run(args, &stdout, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, &stderr)
	}
	if got, want := stderr.String(), "1/1 in-process/requests/4-stages\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	var table bench.Table
	dec := json.NewDecoder(&stdout)
	dec.DisallowUnknownFields()
	if err := dec.Decode(&table); err != nil {
		t.Fatal(err)
	}
	if table.Rounds != 1 || table.Machine.Go != runtime.Version() || len(table.Rows) != 1 {
		t.Fatalf("got %+v", table)
	}
	if r := table.Rows[0]; r.Name != "in-process/requests/4-stages" || r.Unit != "µs" || len(r.Cells) != 3 || r.Cells[0].Median <= 0 || r.Cells[1].Factor <= 0 {
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

// TestInterrupted interrupts at the first line of progress, when a minute of requests is about
// to begin.
func TestInterrupted(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the processes of a side share memory on Linux alone")
	}
	var stdout bytes.Buffer
	stderr := &interrupter{t: t}
	if code := run([]string{"--slice", "1m", "--run", "^in-process/requests"}, &stdout, stderr); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if got, want := stderr.String(), "1/1 in-process/requests/4-stages\nomnibus-bench: interrupted\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	if got := stdout.String(); !strings.HasPrefix(got, "Commit ") || strings.Contains(got, "|") {
		t.Errorf("standard output is %q, want the machine and no figures", got)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

func TestOutputThatFails(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		var stderr bytes.Buffer
		args := []string{"--rounds", "1", "--slice", "1ms", "--run", "^in-process/requests", "-o", form}
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
