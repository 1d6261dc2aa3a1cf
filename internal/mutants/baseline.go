package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// binary is the compiled test of an unchanged package.
type binary struct {
	path  string
	build outcome // the failed build, if there is no binary
	err   error   // the build could not run
}

// baseline runs a suite on the unchanged code. All suites of a package share one
// binary: linking takes longer than most of them.
func (r *runner) baseline(ctx context.Context, s suite) (outcome, error) {
	flags, ok := testFlags(s.flags)
	if !ok {
		return r.goTest(ctx, s, r.timeout)
	}
	bin := r.binaries.get(s.pkg, func() binary { return r.compile(ctx, s.pkg) })
	if bin.path == "" {
		return bin.build, bin.err
	}
	args := []string{"tool", "test2json", bin.path, "-test.v=test2json", "-test.count=1", "-test.timeout=" + r.timeout.String(), "-test.run=" + s.test}
	random, err := r.drawsRandom(ctx, s.pkg)
	if err != nil {
		return outcome{}, err
	}
	if random {
		args = append(args, rapidFlags...)
	}
	return r.command(ctx, filepath.Join(r.root, filepath.FromSlash(s.pkg)), append(args, flags...))
}

func (r *runner) compile(ctx context.Context, pkg string) binary {
	path := filepath.Join(r.dir, strings.ReplaceAll(strings.TrimPrefix(pkg, "./"), "/", "-")+".test")
	cmd := exec.CommandContext(ctx, "go", slices.Concat([]string{"test", "-c"}, quickBuild, []string{"-o", path, pkg})...)
	cmd.Dir = r.root
	out, err := cmd.CombinedOutput()
	switch {
	case ctx.Err() != nil:
		return binary{err: fmt.Errorf("%v: %w", cmd, ctx.Err())}
	case err != nil:
		return binary{build: outcome{noBuild: true, output: clip(string(out))}}
	}
	return binary{path: path}
}

// testFlags translates flags of go test to those of a test binary. It reports false if
// there are others, which are for the compiler.
func testFlags(flags string) (of []string, ok bool) {
	known := []string{"count", "cpu", "parallel", "short", "timeout"}
	for f := range strings.FieldsSeq(flags) {
		name, _, _ := strings.Cut(strings.TrimPrefix(f, "-"), "=")
		if !slices.Contains(known, name) {
			return nil, false
		}
		of = append(of, "-test."+strings.TrimPrefix(f, "-"))
	}
	return of, true
}
