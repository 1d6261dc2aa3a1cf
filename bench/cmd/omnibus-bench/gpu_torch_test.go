package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bench"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// torchProgram is a run of scripts/gpu_torch.py on an emulated GPU, with this test
// binary as the program omnibus-bench.
func torchProgram(t *testing.T, arguments ...string) *exec.Cmd {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("tensors travel in memory of GPUs on Linux alone")
	}
	program, err := exec.LookPath("omnibus-bench") // TestMain has added it to the path
	if err != nil {
		t.Fatal(err)
	}
	arguments = append([]string{"--driver", "emul", "--quick", "--programs", filepath.Dir(program)}, arguments...)
	run := pythontest.Command(t, "../../../scripts/gpu_torch.py", arguments...)
	run.Stderr = nil // the caller sets it
	return run
}

// TestGPUTorch runs the check with PyTorch of scripts/gpu-check.sh; and the same without PyTorch,
// where the standard library reads the tensors.
func TestGPUTorch(t *testing.T) {
	for _, arrays := range []string{"plain", "torch"} {
		t.Run(arrays, func(t *testing.T) {
			lines := filepath.Join(t.TempDir(), "lines")
			if arrays == "torch" {
				pythontest.Interpreter(t, arrays)
			}
			program := torchProgram(t, "--arrays", arrays, "--largest", "4194304", "--lines", lines)
			out, err := program.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if !regexp.MustCompile(`\n134 tensors are right, in place, and given back, by default, cuda_ipc, cuda_ipc_pool, stage\n$`).Match(out) {
				t.Errorf("the output is\n%s", out)
			}
			figures, err := os.ReadFile(lines)
			if err != nil {
				t.Fatal(err)
			}
			compared := arrays == "torch"
			read := json.NewDecoder(bytes.NewReader(figures))
			read.DisallowUnknownFields() // the fields are those of omnibus-bench
			n := 0
			for ; read.More(); n++ {
				var f bench.Result
				if err := read.Decode(&f); err != nil {
					t.Fatalf("%v in\n%s", err, figures)
				}
				if !strings.HasPrefix(f.Name, "gpu/torch/") || f.Value <= 0 || (f.Baseline != nil) != compared || (f.Speed != nil) != compared {
					t.Errorf("%+v", f)
				}
			}
			if n != 8 {
				t.Errorf("%d figures, want 8", n)
			}
		})
	}
}

// TestGPUTorchUnavailable: a missing program has an exit code of its own, which is no failure.
func TestGPUTorchUnavailable(t *testing.T) {
	program := torchProgram(t, "--programs", t.TempDir(), "--arrays", "plain")
	out, err := program.CombinedOutput()
	if program.ProcessState.ExitCode() != 3 || !strings.HasPrefix(string(out), "not available here: ") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestGPUProducerRefuses: the producer refuses invalid orders.
func TestGPUProducerRefuses(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("GPUs are emulated on Linux alone")
	}
	for order, want := range map[string]string{
		`nonsense`:               `an order "nonsense"`,
		`{"transport":"by fax"}`: `no transport "by fax"`,
		`{"transport":"default","count":1,"dtype":"float32","bytes":4100}`:    "tensors of 4100 bytes: use a multiple of 4096 up to 16384",
		`{"transport":"default","count":1,"dtype":"float32","bytes":20480}`:   "tensors of 20480 bytes",
		`{"transport":"default","count":1,"dtype":"complex128","bytes":4096}`: `no elements "complex128"`,
	} {
		cmd := newGPUProducerCmd()
		cmd.SetArgs([]string{t.TempDir(), "--largest", "16384"})
		cmd.SetIn(strings.NewReader(order + "\n"))
		cmd.SetOut(&bytes.Buffer{})
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", order, err, want)
		}
	}
}
