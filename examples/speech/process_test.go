package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
)

// program is the test binary as the program, with its own standard input, output
// and error.
func program(t *testing.T, stdin io.Reader, args ...string) (cmd *exec.Cmd, stdout, stderr *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	cmd = exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), playMain+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, stdout, stderr
	return cmd, stdout, stderr
}

func exitCode(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	if err == nil {
		return 0
	}
	return exit.ExitCode()
}

func TestExitCodes(t *testing.T) {
	for name, c := range map[string]struct {
		args   []string
		code   int
		stdout string // a part; "" for nothing at all
		stderr string
	}{
		"sample":     {nil, 0, "signal to noise", "thinker -> talker -> vocoder: "},
		"help":       {[]string{"-h"}, 0, "", usage},
		"bad input":  {[]string{"missing.wav"}, 1, "", "speech: missing.wav: "},
		"bad flag":   {[]string{"-x"}, 2, "", usage},
		"many names": {[]string{"a", "b", "c"}, 2, "", "3 file names"},
	} {
		t.Run(name, func(t *testing.T) {
			cmd, stdout, stderr := program(t, nil, c.args...)
			if code := exitCode(t, cmd.Run()); code != c.code {
				t.Errorf("exit code %d, want %d; standard error: %s", code, c.code, stderr)
			}
			if !strings.Contains(stdout.String(), c.stdout) || (c.stdout == "" && stdout.Len() > 0) {
				t.Errorf("standard output is %q, want %q", stdout, c.stdout)
			}
			if !strings.Contains(stderr.String(), c.stderr) {
				t.Errorf("standard error is %q, want %q", stderr, c.stderr)
			}
		})
	}
}

// With a dash for OUT.wav, standard output has the samples and nothing else.
func TestSamplesOnStandardOutput(t *testing.T) {
	cmd, stdout, stderr := program(t, bytes.NewReader(sample), "-q", "0", "-", "-")
	if code := exitCode(t, cmd.Run()); code != 0 {
		t.Fatalf("exit code %d; standard error: %s", code, stderr)
	}
	if want := openWAVOf(sample); !bytes.Equal(stdout.Bytes(), want) {
		t.Errorf("standard output has %d bytes that are not the samples, %d bytes", stdout.Len(), len(want))
	}
	for _, has := range []string{"vocoder -> output", "signal to noise: the samples are the same"} {
		if !strings.Contains(stderr.String(), has) {
			t.Errorf("standard error lacks %q: %s", has, stderr)
		}
	}
}

// An interrupt ends a run that waits for input, with an error.
func TestInterrupt(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows cannot send an interrupt to one process")
	}
	cmd, _, stderr := program(t, nil, "-", "-")
	cmd.Stdout = nil
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
	go func() { _, _ = stdin.Write(sample[:100_000]) }()
	if _, err := io.ReadFull(stdout, make([]byte, wavHeaderBytes+1)); err != nil { // it is running
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, stdout)
	if code := exitCode(t, cmd.Wait()); code != 1 || !strings.Contains(stderr.String(), "speech: standard input: ") || !strings.Contains(stderr.String(), "interrupt signal received") {
		t.Errorf("exit code %d, standard error %s", code, stderr)
	}
}
