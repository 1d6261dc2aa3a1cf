package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Exit codes.
const (
	exitCaught   = 0 // every mutant was caught
	exitSurvived = 1 // at least one was not caught, or could not be tried
	exitUsage    = 2 // the command could not start
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mutants", flag.ContinueOnError)
	flags.SetOutput(stderr)
	name := flags.String("run", "", "try only mutants whose name matches this regular expression")
	part := flags.String("part", "1/1", "try only this part of them: 2/4 is every fourth, from the second on")
	parallel := flags.Int("parallel", runtime.GOMAXPROCS(0), "try this number of mutants at a time: building each takes one processor")
	timeout := flags.Duration("timeout", time.Minute, "longest time for the tests of one mutant; shorter for tests that are quick on the unchanged code")
	root := flags.String("root", "", "the module to work on; by default the module of the working folder")
	dir := flags.String("list", "internal/mutants/list", "folder of the mutants, relative to the module")
	if err := flags.Parse(args); err != nil {
		return exitUsage
	}
	mutants, absRoot, err := prepare(ctx, *root, *dir, *name, *part)
	if err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return exitUsage
	}
	tmp, err := os.MkdirTemp("", "mutants-")
	if err != nil {
		fmt.Fprintln(stderr, "mutants:", err)
		return exitUsage
	}
	defer func() { _ = os.RemoveAll(tmp) }()
	return tryAll(ctx, newRunner(absRoot, tmp, *timeout), mutants, *parallel, stdout)
}

// prepare finds the module, and the mutants that match name and belong to part.
func prepare(ctx context.Context, root, dir, name, part string) (mutants []mutant, absRoot string, err error) {
	pattern, err := regexp.Compile(name)
	if err != nil {
		return nil, "", fmt.Errorf("-run: %w", err)
	}
	if root == "" {
		if root, err = moduleRoot(ctx); err != nil {
			return nil, "", err
		}
	}
	// The overlay of the go command wants absolute paths.
	if root, err = filepath.Abs(root); err != nil {
		return nil, "", err
	}
	mutants, err = loadMutants(filepath.Join(root, filepath.FromSlash(dir)))
	if err != nil {
		return nil, "", err
	}
	mutants = slices.DeleteFunc(mutants, func(m mutant) bool { return !pattern.MatchString(m.name) })
	if len(mutants) == 0 {
		return nil, "", fmt.Errorf("no mutant in %s matches %q", dir, name)
	}
	if mutants, err = partOf(mutants, part); err != nil {
		return nil, "", err
	}
	return mutants, root, nil
}

// partOf returns part i of n, for part "i/n": every nth mutant, beginning with the ith.
func partOf(mutants []mutant, part string) (those []mutant, err error) {
	var i, n int
	if _, err := fmt.Sscanf(part, "%d/%d", &i, &n); err != nil || i < 1 || i > n {
		return nil, fmt.Errorf("-part: %q is no part such as 2/4", part)
	}
	for at := i - 1; at < len(mutants); at += n {
		those = append(those, mutants[at])
	}
	return those, nil
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", fmt.Errorf("find the module: %w", err)
	}
	file := string(bytes.TrimSpace(out))
	if file == "" || file == os.DevNull {
		return "", errors.New("not inside a module; name one with -root")
	}
	return filepath.Dir(file), nil
}

// decide tries parallel mutants at a time, and sends each verdict when it is there.
func decide(ctx context.Context, r *runner, mutants []mutant, parallel int) <-chan verdict {
	verdicts := make(chan verdict)
	next := make(chan mutant)
	var workers sync.WaitGroup
	for range parallel {
		workers.Go(func() {
			for m := range next {
				verdicts <- r.try(ctx, m)
			}
		})
	}
	go func() {
		for _, m := range mutants {
			next <- m
		}
		close(next)
		workers.Wait()
		close(verdicts)
	}()
	return verdicts
}

// tryAll prints one line for each mutant as it is decided, and details for
// those that were not caught.
func tryAll(ctx context.Context, r *runner, mutants []mutant, parallel int, w io.Writer) int {
	nameWidth, fileWidth := len("mutant"), len("file")
	for _, m := range mutants {
		nameWidth, fileWidth = max(nameWidth, len(m.name)), max(fileWidth, len(m.file))
	}
	row := func(name, file, took, by string) {
		fmt.Fprintf(w, "%-*s  %-*s  %7s  %s\n", nameWidth, name, fileWidth, file, took, by)
	}
	row("mutant", "file", "time", "caught by")

	var missed []verdict
	for v := range decide(ctx, r, mutants, max(parallel, 1)) {
		m, by := v.mutant, v.by
		if v.err != nil {
			missed = append(missed, v)
			by, _, _ = strings.Cut("NOT CAUGHT: "+v.err.Error(), "\n")
		}
		row(m.name, m.file, fmt.Sprintf("%.1fs", v.took.Seconds()), by)
	}
	for _, v := range missed {
		fmt.Fprintf(w, "\n%s: %s\n%v\n", v.mutant.name, v.mutant.why, v.err)
	}
	fmt.Fprintf(w, "\n%d of %d mutants caught\n", len(mutants)-len(missed), len(mutants))
	if len(missed) > 0 {
		return exitSurvived
	}
	return exitCaught
}
