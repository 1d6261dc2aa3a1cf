package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// gpuCheckSteps are the steps of scripts/gpu-check.sh, in their order.
var gpuCheckSteps = []string{
	"capabilities", "conformance", "ordering", "throughput", "latency", "leases", "reclaim",
	"example-default", "example-cuda_ipc", "example-cuda_ipc_pool", "torch", "kills",
}

// gpuCheckStep is what its results say of one.
type gpuCheckStep struct {
	Step, Status string
	Limit        int
}

// TestGPUCheckDeadline has a step of scripts/gpu-check.sh hang, which no signal but
// the last one ends: its results have every step all the same.
func TestGPUCheckDeadline(t *testing.T) {
	for _, test := range []struct {
		name, program string // that hangs
		hangs         string // the step that it is of
		deadline      int
	}{
		{name: "first", program: "omnibus", hangs: "capabilities", deadline: 12},
		{name: "second", program: "emul.test", hangs: "conformance", deadline: 12},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			steps, table := gpuCheck(t, test.program, test.deadline)
			at := slices.Index(gpuCheckSteps, test.hangs)
			for i, name := range gpuCheckSteps {
				want := "ok"
				switch {
				case i == at:
					want = "timeout"
				case i > at:
					want = "not-run"
				}
				if got := steps[i]; got.Step != name || got.Status != want {
					t.Errorf("step %d is %+v, want %s %s", i, got, name, want)
				}
				if !strings.Contains(table, "\n"+name+" ") {
					t.Errorf("the table has no %s", name)
				}
			}
			// What hung had no more than all steps have together.
			if got := steps[at].Limit; got < 1 || got >= test.deadline {
				t.Errorf("the limit of %s was %d s", test.hangs, got)
			}
			if want := fmt.Sprintf("not run: nothing is left of the %d s", test.deadline); !strings.Contains(table, want) {
				t.Errorf("the table does not say %q", want)
			}
		})
	}
}

// gpuCheck runs the script with programs that do nothing, but for one that hangs.
func gpuCheck(t *testing.T, hangs string, deadline int) (steps []gpuCheckStep, table string) {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("scripts/gpu-check.sh is for Linux")
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("a step of scripts/gpu-check.sh needs python3: ", err)
	}
	programs, out := t.TempDir(), t.TempDir()
	bin := filepath.Join(programs, "linux-"+runtime.GOARCH)
	if err := os.MkdirAll(filepath.Join(programs, "python"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(bin, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"omnibus", "omnibus-bench", "gpu-example", "emul.test", "chaos.test"} {
		text := "#!/bin/sh\n"
		if name == hangs {
			text += "trap '' INT TERM\nwhile :; do sleep 60; done\n"
		}
		if err := os.WriteFile(filepath.Join(bin, name), []byte(text), 0o700); err != nil { //nolint:gosec // a program
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(programs, "python", "gpu_torch.py"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	script := exec.CommandContext(t.Context(), "../../scripts/gpu-check.sh", "-d", "emul", "-q", "-t", strconv.Itoa(deadline), "-o", out, programs)
	output, err := script.CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("the script ended with %v, and not with 1:\n%s", err, output)
	}
	results, err := os.ReadFile(filepath.Join(out, "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range bytes.Lines(results) {
		var step gpuCheckStep
		if err := json.Unmarshal(line, &step); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		steps = append(steps, step)
	}
	if len(steps) != len(gpuCheckSteps) {
		t.Fatalf("%d steps in %s", len(steps), results)
	}
	text, err := os.ReadFile(filepath.Join(out, "table.txt"))
	if err != nil {
		t.Fatal(err)
	}
	return steps, string(text)
}
