package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

var (
	errSurvived = errors.New("SURVIVED")
	errNoBuild  = errors.New("does not compile")
	errNoTest   = errors.New("no test of that name ran")
	errBaseline = errors.New("its test fails on the unchanged code")
)

// runner runs mutants against the module at root, any number at a time.
type runner struct {
	root    string
	dir     string        // for compiled files
	timeout time.Duration // of the tests of one mutant

	checked   once[suite, checked] // the result of each suite on the unchanged code
	binaries  once[string, binary]
	usesRapid once[string, rapid]
}

// checked is the result of a suite on the unchanged code, and its time.
type checked struct {
	took time.Duration
	err  error
}

// rapid records whether the tests of a package draw random values.
type rapid struct {
	uses bool
	err  error
}

// once caches the result of a function by key. A second caller of a key waits for the first.
type once[K comparable, V any] struct {
	mu    sync.Mutex
	found map[K]func() V
}

func (o *once[K, V]) get(key K, find func() V) V {
	o.mu.Lock()
	found := o.found[key]
	if found == nil {
		found = sync.OnceValue(find)
		if o.found == nil {
			o.found = make(map[K]func() V)
		}
		o.found[key] = found
	}
	o.mu.Unlock()
	return found()
}

// newRunner returns a runner that writes only into dir.
func newRunner(root, dir string, timeout time.Duration) *runner {
	return &runner{root: root, dir: dir, timeout: timeout}
}

// verdict is the result of one mutant.
type verdict struct {
	mutant mutant
	by     string        // the tests that failed, or the other way in which it was caught
	err    error         // why it was not caught
	took   time.Duration // for the mutant alone, without the baseline
}

// try plants the mutant and runs its test.
func (r *runner) try(ctx context.Context, m mutant) verdict {
	v := verdict{mutant: m}
	c := r.check(ctx, m.suite)
	if v.err = c.err; v.err != nil {
		return v
	}
	start := time.Now()
	v.by, v.err = r.plant(ctx, m, min(r.timeout, hangs(c.took)))
	v.took = time.Since(start)
	return v
}

// check runs a suite on the unchanged code, once.
func (r *runner) check(ctx context.Context, s suite) checked {
	return r.checked.get(s, func() checked {
		out, err := r.baseline(ctx, s)
		switch {
		case err != nil:
		case out.noBuild || !out.ok:
			err = fmt.Errorf("%w:\n%s", errBaseline, out.output)
		case out.ran == 0:
			err = fmt.Errorf("%w: %s in %s", errNoTest, s.test, s.pkg)
		}
		return checked{out.took, err}
	})
}

// hangs returns the time after which a test counts as hanging, from its time on the unchanged code.
func hangs(took time.Duration) time.Duration { return 20*time.Second + 20*took }

// plant runs the test of m on the changed code and returns the tests that caught it.
func (r *runner) plant(ctx context.Context, m mutant, limit time.Duration) (by string, err error) {
	changed, err := m.apply(r.root)
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(r.dir, m.name+"-")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()

	overlay, err := writeOverlay(dir, filepath.Join(r.root, filepath.FromSlash(m.file)), changed)
	if err != nil {
		return "", err
	}
	out, err := r.goTest(ctx, m.suite, limit, "-overlay="+overlay)
	if err != nil {
		return "", err
	}
	return out.verdict()
}

// writeOverlay writes the file for the go command's -overlay flag: a list of files
// and their replacements.
func writeOverlay(dir, file string, changed []byte) (string, error) {
	replacement := filepath.Join(dir, "changed.go")
	if err := os.WriteFile(replacement, changed, 0o600); err != nil {
		return "", err
	}
	list, err := json.Marshal(map[string]map[string]string{"Replace": {file: replacement}})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, list, 0o600)
}
