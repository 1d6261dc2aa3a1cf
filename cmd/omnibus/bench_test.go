package main

import (
	"bytes"
	"encoding/json"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/internal/bench"
)

func TestBenchJSON(t *testing.T) {
	var stdout, stderr bytes.Buffer
	args := []string{"bench", "--quick", "-o", "json", "--run", "^mailbox/senders=1$"}
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

// TestBenchInterrupted interrupts at the first line of progress, when ten idle
// seconds are about to begin.
func TestBenchInterrupted(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("a process cannot interrupt itself")
	}
	var stdout bytes.Buffer
	stderr := &interrupter{t: t}
	if code := run([]string{"bench", "--run", "^idle/cpu$"}, &stdout, stderr); code != exitFailed {
		t.Errorf("exit code %d", code)
	}
	if got, want := stderr.String(), "1/1 idle/cpu\nomnibus: interrupted\n"; got != want {
		t.Errorf("standard error is %q, want %q", got, want)
	}
	if got := stdout.String(); !strings.HasPrefix(got, runtime.Version()+", ") || strings.Contains(got, "NAME") {
		t.Errorf("standard output is %q, want the machine and no figures", got)
	}
}

func TestBenchOutputThatFails(t *testing.T) {
	for _, form := range []string{"text", "json"} {
		var stderr bytes.Buffer
		args := []string{"bench", "--quick", "--run", "^mailbox/ping-pong$", "-o", form}
		if code := run(args, brokenPipe{}, &stderr); code != exitFailed || !strings.HasSuffix(stderr.String(), "\nomnibus: broken pipe\n") {
			t.Errorf("%s: exit code %d, standard error %q", form, code, &stderr)
		}
	}
}
