package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"time"
)

// Bounds of one run of go test.
const (
	// buildAllowance is added to the time limit of the tests: the limit of
	// go test starts when the test binary does.
	buildAllowance = 5 * time.Minute
	// killDelay bounds the time for which a killed go test may keep its pipes open.
	killDelay = 5 * time.Second
	// maxOutputBytes bounds the printed output of a failed build.
	maxOutputBytes = 4 << 10
)

// rapidFlags make property tests fit for planted mistakes: they write no file into
// the source tree, limit the search for the smallest failing example, and fix the
// seed.
var rapidFlags = []string{"-rapid.nofailfile", "-rapid.shrinktime=1s", "-rapid.seed=1"}

// quickBuild are flags that save a third of the time of building a mutant: no
// optimization of the package, no tables for debuggers, and no vet, which would refuse
// some mutants before a test runs.
var quickBuild = []string{"-vet=off", "-gcflags=-N -l -dwarf=false", "-ldflags=-w"}

// outcome is the result of one run of go test.
type outcome struct {
	took     time.Duration // of the command, with the build unless it is a test binary
	failed   []string      // tests that failed
	ran      int           // tests that ended
	ok       bool          // the package passed
	noBuild  bool
	timedOut bool
	output   string
}

func (o outcome) verdict() (by string, err error) {
	switch {
	case o.noBuild:
		return "", fmt.Errorf("%w:\n%s", errNoBuild, o.output)
	case o.timedOut:
		return strings.Join(append(o.failed, "by timeout"), " "), nil
	case len(o.failed) > 0:
		return strings.Join(o.failed, " "), nil
	case !o.ok:
		return "by crash", nil
	}
	return "", errSurvived
}

// goTest runs one suite. Its error means that go test itself could not run.
func (r *runner) goTest(ctx context.Context, s suite, limit time.Duration, extra ...string) (outcome, error) {
	args, err := r.goTestArgs(ctx, s, limit, extra)
	if err != nil {
		return outcome{}, err
	}
	return r.command(ctx, r.root, args)
}

// command runs a go command in dir whose output is that of go test -json.
func (r *runner) command(ctx context.Context, dir string, args []string) (outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, r.timeout+buildAllowance)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.WaitDelay = killDelay
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr

	start := time.Now()
	err := cmd.Run()
	took := time.Since(start)
	if ctx.Err() != nil {
		return outcome{}, fmt.Errorf("%v: %w", cmd, ctx.Err())
	}
	// Any exit status is a result; only a command that did not start is an error.
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		return outcome{}, fmt.Errorf("%v: %w", cmd, err)
	}
	out := readEvents(&stdout)
	out.took = took
	if out.output == "" {
		out.output = clip(stderr.String())
	}
	if err != nil && out.ok {
		return outcome{}, fmt.Errorf("%v: %w: %s", cmd, err, out.output)
	}
	return out, nil
}

func (r *runner) goTestArgs(ctx context.Context, s suite, limit time.Duration, extra []string) ([]string, error) {
	args := []string{"test", "-json", "-count=1", "-timeout=" + limit.String(), "-run=" + s.test}
	args = slices.Concat(args, quickBuild, extra, strings.Fields(s.flags), []string{s.pkg})
	random, err := r.drawsRandom(ctx, s.pkg)
	if err != nil {
		return nil, err
	}
	if random {
		args = append(args, rapidFlags...)
	}
	return args, nil
}

// drawsRandom reports whether the tests of pkg use rapid, and therefore accept its
// flags.
func (r *runner) drawsRandom(ctx context.Context, pkg string) (bool, error) {
	found := r.usesRapid.get(pkg, func() rapid {
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", "-test", pkg)
		cmd.Dir = r.root
		out, err := cmd.Output()
		if err != nil {
			return rapid{false, fmt.Errorf("%v: %w", cmd, err)}
		}
		return rapid{slices.Contains(strings.Fields(string(out)), "pgregory.net/rapid"), nil}
	})
	return found.uses, found.err
}

// event is one line of go test -json; see `go doc test2json`.
type event struct {
	Action      string
	Test        string
	Output      string
	FailedBuild string
}

// readEvents summarizes the output of go test -json.
func readEvents(stdout *bytes.Buffer) outcome {
	var out outcome
	var text strings.Builder
	lines := bufio.NewScanner(stdout)
	lines.Buffer(nil, stdout.Len()+1) // a single line may be the whole output
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			continue // a line that the go command printed itself
		}
		out.add(e)
		text.WriteString(e.Output)
	}
	out.failed = innermost(out.failed)
	out.output = clip(text.String())
	return out
}

func (o *outcome) add(e event) {
	switch {
	case e.Test != "" && e.Action == "fail":
		o.ran++
		o.failed = append(o.failed, e.Test)
	case e.Test != "" && e.Action == "pass":
		o.ran++
	case e.Action == "pass":
		o.ok = true
	case e.Action == "build-fail", e.FailedBuild != "":
		o.noBuild = true
	case strings.HasPrefix(e.Output, "panic: test timed out after "):
		o.timedOut = true
	}
}

// innermost drops tests that failed only because one of their subtests did.
func innermost(failed []string) []string {
	return slices.DeleteFunc(slices.Clone(failed), func(parent string) bool {
		return slices.ContainsFunc(failed, func(t string) bool { return strings.HasPrefix(t, parent+"/") })
	})
}

func clip(s string) string {
	if len(s) <= maxOutputBytes {
		return s
	}
	return s[:maxOutputBytes] + "\n(cut here)\n"
}
