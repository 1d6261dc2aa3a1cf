package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"omnibus": main, "stage": stageMain, "embedded": embeddedMain, "page": pageMain, "tokens": tokensMain})
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata",
		Setup: func(env *testscript.Env) error {
			// Not below the script's own folder: the path of a socket is bounded.
			env.Setenv("XDG_RUNTIME_DIR", t.TempDir())
			env.Setenv("KEY", fmt.Sprintf("omnibus_test_%d", os.Getpid()))
			client, err := filepath.Abs("../../clients/python")
			env.Setenv("PYTHONPATH", filepath.Join(client, "src"))
			env.Setenv("STORESERVER", filepath.Join(client, "tests", "storeserver.py"))
			env.Setenv("OMNIBUS_PYTHON", interpreter())
			return err
		},
		Cmds: map[string]func(ts *testscript.TestScript, neg bool, args []string){
			"exits": exits,
		},
		Condition: func(cond string) (bool, error) {
			switch cond {
			case "root":
				return os.Geteuid() == 0, nil
			case "container": // there can be another process 1
				return exec.Command("unshare", "-Urpf", "--mount-proc", "true").Run() == nil, nil
			case "mooncake":
				return exec.Command(interpreter(), "-c", "import mooncake.store").Run() == nil, nil
			}
			return false, errors.New("unknown condition " + cond)
		},
	})
}

// interpreter is the Python that may have what others lack.
func interpreter() string { return cmp.Or(os.Getenv("OMNIBUS_PYTHON"), "python3") }

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

func TestBuildVersion(t *testing.T) {
	info := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	v := buildVersion(info, true)
	v.Go, v.OS, v.Arch = "go1", "linux", "amd64"
	want := version{"v1.2.3", "abc", "2026-01-02T03:04:05Z", true, "go1", "linux", "amd64"}
	if diff := gocmp.Diff(want, v); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var line bytes.Buffer
	if err := v.write(&line); err != nil {
		t.Fatal(err)
	}
	if got, want := line.String(), "omnibus v1.2.3 (abc, 2026-01-02T03:04:05Z) modified go1 linux/amd64\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := buildVersion(nil, false).Version; got != "unknown" {
		t.Errorf("without build information: %q", got)
	}
}

// TestWaitsHaveAnEnd: what waits for a host ends, and says how long it did.
func TestWaitsHaveAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := within(t.Context(), answerTimeout)
		defer cancel()
		<-ctx.Done()
		if got, want := context.Cause(ctx).Error(), "nothing came within 30s"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// TestOutputThatFails: an output that cannot be written is no success.
func TestOutputThatFails(t *testing.T) {
	file := t.TempDir() + "/p.yaml"
	if err := os.WriteFile(file, []byte("stages: [{stage_id: 0}]"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"validate", file},
		{"validate", "-o", "json", file},
		{"graph", file},
		{"graph", "-f", "dot", file},
		{"graph", "-o", "json", file},
		{"version"},
		{"version", "-o", "json"},
	} {
		var stderr bytes.Buffer
		if code := run(args, brokenPipe{}, &stderr); code != exitFailed || stderr.String() != "omnibus: broken pipe\n" {
			t.Errorf("%q: exit code %d, standard error %q", args, code, &stderr)
		}
	}
}

// TestReadmeListsVerbs: the page says which verbs have no -o json, and has all of them.
func TestReadmeListsVerbs(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile("All but ([^.]*?) take `-o json`").FindSubmatch(page)
	if m == nil {
		t.Fatal("the page does not say which verbs take -o json")
	}
	var without []string
	for _, cmd := range newRootCmd(func() {}).Commands() {
		if cmd.Name() == "help" { // each verb's --help says the same
			continue
		}
		if !regexp.MustCompile(`(omnibus|\|) ` + cmd.Name() + `\b`).Match(page) {
			t.Errorf("the page does not have omnibus %s", cmd.Name())
		}
		if cmd.Flags().Lookup("output") == nil {
			without = append(without, cmd.Name())
		}
	}
	var said []string
	for _, word := range regexp.MustCompile("`([a-z]+)`").FindAllSubmatch(m[1], -1) {
		said = append(said, string(word[1]))
	}
	slices.Sort(said)
	if diff := gocmp.Diff(without, said); diff != "" {
		t.Errorf("verbs without -o json (-are +as the page says):\n%s", diff)
	}
}

// TestExchangeExamples: the command lines of examples/exchange make sense.
func TestExchangeExamples(t *testing.T) {
	unit, err := os.ReadFile("../../examples/exchange/omnibus-exchange.service")
	if err != nil {
		t.Fatal(err)
	}
	pod, err := os.ReadFile("../../examples/exchange/pod.yml")
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]string
	for _, m := range regexp.MustCompile(`(?m)^ExecStart=(.*)$`).FindAllSubmatch(unit, -1) {
		lines = append(lines, strings.Fields(string(m[1])))
	}
	for _, m := range regexp.MustCompile(`command: \[(.*?)\]`).FindAllSubmatch(pod, -1) {
		lines = append(lines, strings.Split(string(m[1]), ", "))
	}
	if len(lines) != 3 {
		t.Fatalf("found %d command lines, want 3", len(lines))
	}
	for _, line := range lines {
		cmd, args, err := newRootCmd(func() {}).Find(line[1:])
		if err == nil {
			err = cmd.ParseFlags(args)
		}
		if err == nil {
			err = cmd.ValidateArgs(cmd.Flags().Args())
		}
		if err != nil || line[0] != "omnibus" {
			t.Errorf("%s: %v", strings.Join(line, " "), err)
		}
	}
}

// TestSignalTwice: timeout(1) sends its signal twice, and that is one.
func TestSignalTwice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		signals, over := make(chan os.Signal), make(chan struct{})
		second := make(chan os.Signal)
		go func() {
			sig, _ := nextSignal(signals, over, syscall.SIGTERM, echoWait)
			second <- sig
		}()
		<-time.After(echoWait - time.Nanosecond)
		signals <- syscall.SIGTERM
		synctest.Wait()
		select {
		case sig := <-second:
			t.Errorf("%v counts as a second signal", sig)
		default:
		}
		<-time.After(time.Nanosecond)
		signals <- syscall.SIGTERM
		if sig := <-second; sig != syscall.SIGTERM {
			t.Errorf("the second signal is %v", sig)
		}
		for _, sig := range []os.Signal{os.Interrupt, nil} { // another one; the end
			go func() {
				got, _ := nextSignal(signals, over, syscall.SIGTERM, echoWait)
				second <- got
			}()
			if sig == nil {
				close(over)
			} else {
				signals <- sig
			}
			if got := <-second; got != sig {
				t.Errorf("got %v, want %v", got, sig)
			}
		}
	})
}
