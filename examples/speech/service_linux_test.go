package main

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// omnibus builds the command.
func omnibus(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: the command is not built")
	}
	for _, needed := range []string{"go", "python3"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("%s is not installed", needed)
		}
	}
	path := filepath.Join(t.TempDir(), "omnibus")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path, "../../cmd/omnibus").CombinedOutput(); err != nil {
		t.Fatalf("build the command: %v\n%s", err, out)
	}
	return path
}

// The output of the processes of pipeline.yaml is the same, bit for bit, as that of the
// stages in one process, and no socket or process is left.
func TestProcesses(t *testing.T) {
	readFile(t, "quantise.py") // so that a change invalidates a cached test result
	command := omnibus(t)
	stereo := writeFile(t, "stereo.wav", wavBytes(wav.Format{Rate: 16000, Channels: 2}, sweep(70_000)))
	empty := writeFile(t, "empty.wav", wavBytes(wav.Format{Rate: 8000, Channels: 1}, nil))
	for name, args := range map[string][]string{
		"sample":   {""},
		"fine":     {"-q", "0.02", stereo},
		"lossless": {"-q", "0", "testdata/speech.wav"},
		"empty":    {empty},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args = append([]string{"-o", "json"}, args...)
			inside, outside := filepath.Join(t.TempDir(), "in.wav"), filepath.Join(t.TempDir(), "out.wav")
			want := readFigures(t, first(mustRun(t, nil, append(args, inside)...)))
			stdout, stderr, code := runProcesses(t, command, append(args, outside)...)
			if code != 0 {
				t.Fatalf("exit code %d; standard error: %s", code, stderr)
			}
			if !bytes.Equal(readFile(t, inside), readFile(t, outside)) {
				t.Error("the samples are not the same")
			}
			got := readFigures(t, stdout)
			for i, e := range want.Edges { // times and copies may differ
				got.Edges[i].P50, got.Edges[i].P99, got.Edges[i].Copies = e.P50, e.P99, e.Copies
			}
			got.Seconds = want.Seconds
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the figures differ:\n%s", diff)
			}
			if !strings.Contains(stderr, "1 request completed") || !strings.Contains(stderr, "store clean") {
				t.Errorf("standard error is %s", stderr)
			}
		})
	}
	t.Run("no input", func(t *testing.T) {
		t.Parallel()
		_, stderr, code := runProcesses(t, command, "missing.wav")
		if code != 1 || !strings.Contains(stderr, "speech: missing.wav: ") {
			t.Errorf("exit code %d; standard error: %s", code, stderr)
		}
	})
	t.Run("killed talker", func(t *testing.T) {
		t.Parallel()
		checkKilledTalker(t, command)
	})
}

// checkKilledTalker kills the talker while the input is still being sent. The next
// talker continues, and all samples are the same.
func checkKilledTalker(t *testing.T, command string) {
	want := first(mustRun(t, sample, "-", "-"))
	var stderr bytes.Buffer
	cmd, runtimeDir := processes(t, command, "-", "-")
	cmd.Stderr = &stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	half := len(sample) / 2
	go func() { _, _ = stdin.Write(sample[:half]) }()
	got := make([]byte, wavHeaderBytes+chunkBytes) // the talker is working
	if _, err := io.ReadFull(stdout, got); err != nil {
		t.Error(err) // standard error follows
	}
	for pid, line := range running(t, runtimeDir) {
		if strings.Contains(line, "quantise.py") {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}
	}
	go func() {
		_, _ = stdin.Write(sample[half:])
		stdin.Close()
	}()
	rest, _ := io.ReadAll(stdout)
	if code := exitCode(t, cmd.Wait()); code != 0 || !strings.Contains(stderr.String(), "1 restart;") {
		t.Errorf("exit code %d, want 0 and one restart; standard error: %s", code, &stderr)
	}
	if string(got)+string(rest) != want {
		t.Error("the samples are not the same")
	}
	checkNothingLeft(t, runtimeDir)
}

func first(s, _ string) string { return s }

// processes prepares a run of pipeline.yaml with this program as the caller. All its
// processes have the runtime folder in their environment.
func processes(t *testing.T, command string, args ...string) (cmd *exec.Cmd, runtimeDir string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	runtimeDir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), command, append([]string{"run", "pipeline.yaml", "--", self}, args...)...)
	cmd.Env = append(os.Environ(), playMain+"=1", "PYTHONDONTWRITEBYTECODE=1", "XDG_RUNTIME_DIR="+runtimeDir)
	return cmd, runtimeDir
}

// runProcesses makes such a run to its end.
func runProcesses(t *testing.T, command string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd, runtimeDir := processes(t, command, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	code = exitCode(t, cmd.Run())
	checkNothingLeft(t, runtimeDir)
	return out.String(), errs.String(), code
}

// checkNothingLeft looks for sockets and processes of a run that has ended.
func checkNothingLeft(t *testing.T, runtimeDir string) {
	t.Helper()
	err := filepath.WalkDir(runtimeDir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type() == fs.ModeSocket {
			t.Errorf("the socket %s is left", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for pid, line := range running(t, runtimeDir) {
		t.Errorf("process %d is left: %q", pid, line)
	}
}

// running returns the command lines of the processes of a run, by process id.
func running(t *testing.T, runtimeDir string) map[int]string {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*")
	if err != nil || len(all) == 0 {
		t.Fatalf("%d processes, %v", len(all), err)
	}
	found := make(map[int]string)
	for _, dir := range all {
		env, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || !bytes.Contains(env, []byte("XDG_RUNTIME_DIR="+runtimeDir+"\x00")) {
			continue // it has ended, or belongs to another user
		}
		pid, err := strconv.Atoi(filepath.Base(dir))
		if err != nil {
			t.Fatal(err)
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline")) // it may end meanwhile
		found[pid] = string(line)
	}
	return found
}

// pipeline.yaml and pipeline describe the same stages and edges.
func TestPipelineFile(t *testing.T) {
	file, err := config.Load("pipeline.yaml", config.Options{})
	if err != nil {
		t.Fatal(err)
	}
	got, _, err := file.BuildHost(nil)
	if err != nil {
		t.Fatal(err)
	}
	type stage struct {
		name     string
		inflight int
		state    bus.State
	}
	stages := func(p bus.Pipeline) (all []stage) {
		for _, s := range p.Stages {
			all = append(all, stage{s.Name, s.MaxInflight, s.State})
		}
		return all
	}
	want := pipeline()
	if diff := cmp.Diff(stages(want), stages(got), cmp.AllowUnexported(stage{})); diff != "" {
		t.Errorf("the stages differ:\n%s", diff)
	}
	if diff := cmp.Diff(want.Edges, got.Edges); diff != "" {
		t.Errorf("the edges differ:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"go", "run", ".", "testdata/speech.wav", "decoded.wav"}, file.Bus.Main); diff != "" {
		t.Errorf("the README's description of the caller differs:\n%s", diff)
	}
}

// The name of a stage that the program does not have is an error; the program does not run as a caller.
func TestServeUnknownStage(t *testing.T) {
	cmd, stdout, stderr := program(t, nil)
	cmd.Env = append(cmd.Env, node.EnvStage+"=singer")
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || !strings.Contains(stderr.String(), `speech: there is no stage "singer"`) || stdout.Len() > 0 {
		t.Errorf("got %v, standard output %q, standard error %q", err, stdout, stderr)
	}
}
