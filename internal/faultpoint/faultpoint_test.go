package faultpoint

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		in   string
		name string
		at   int64
	}{
		{in: "", name: "", at: 1},
		{in: "a", name: "a", at: 1},
		{in: "a:3", name: "a", at: 3},
		{in: "a:x", name: "a", at: 1},
		{in: "a:-1", name: "a", at: 1},
	} {
		if name, at := parse(tc.in); name != tc.name || at != tc.at {
			t.Errorf("parse(%q) = %q, %d, want %q, %d", tc.in, name, at, tc.name, tc.at)
		}
	}
}

// TestHitKills runs itself in a child process that is armed for the second hit.
func TestHitKills(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("windows has no signals to tell a kill from an exit")
	}
	const child = "FAULTPOINT_TEST_CHILD"
	if os.Getenv(child) != "" {
		Hit("other")
		Hit("here")
		_, _ = os.Stdout.WriteString("once")
		Hit("here")
		_, _ = os.Stdout.WriteString("twice")
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHitKills$")
	cmd.Env = append(os.Environ(), child+"=1", Variable+"=here:2")
	out, err := cmd.Output()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("the child ended with %v, want a signal", err)
	}
	if string(out) != "once" {
		t.Errorf("the child wrote %q, want %q", out, "once")
	}
}

func TestHitIsOffByDefault(t *testing.T) {
	Hit("anything")
}

// TestHitStops: in a child process that is armed to stop, the goroutine that hits stops and the others run on.
func TestHitStops(t *testing.T) {
	const child = "FAULTPOINT_TEST_STOPS"
	if os.Getenv(child) != "" {
		go func() {
			defer os.Exit(1)
			_, _ = os.Stdout.WriteString("before ")
			Hit("here")
		}()
		for hits.Load() == 0 {
			runtime.Gosched()
		}
		_, _ = os.Stdout.WriteString("after")
		os.Exit(0)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestHitStops$")
	cmd.Env = append(os.Environ(), child+"=1", Variable+"=stop=here")
	if out, err := cmd.Output(); err != nil || string(out) != "before after" {
		t.Errorf("the child wrote %q and ended with %v", out, err)
	}
}
