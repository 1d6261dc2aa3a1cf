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
	errBaseline = errors.New("its test fails on the code as it is")
)

// runner runs mutants against the module at root, any number at a time.
type runner struct {
	root    string
	dir     string        // for what is compiled
	timeout time.Duration // of the tests of one mutant

	checked   once[suite, checked] // what each suite says of the code as it is
	binaries  once[string, binary]
	usesRapid once[string, rapid]
}

// checked is what a suite says of the code as it is, and how long it takes for that.
type checked struct {
	took time.Duration
	err  error
}

// rapid is whether the tests of a package draw random values.
type rapid struct {
	uses bool
	err  error
}

// once keeps what was found out for a key. Whoever comes second waits for it.
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

// newRunner returns a runner that writes into dir and nowhere else.
func newRunner(root, dir string, timeout time.Duration) *runner {
	return &runner{root: root, dir: dir, timeout: timeout}
}

// verdict is what became of one mutant.
type verdict struct {
	mutant mutant
	by     string        // the tests that failed, or how else it was caught
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

// check runs a suite on the code as it is, once.
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

// hangs is after how long a test hangs that took so long on the code as it is.
func hangs(took time.Duration) time.Duration { return 20*time.Second + 20*took }

// plant runs the test of m on the changed code and says who caught it.
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

// writeOverlay writes what the -overlay flag of the go command wants: a list of
// files to read in the place of others.
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
