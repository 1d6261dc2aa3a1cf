package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/limits"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestAdvice: an error by a limit of the system names the limit once, and the setting of the store's size
// if the verb has one.
func TestAdvice(t *testing.T) {
	const setting = "ring_bytes"
	for _, tc := range []struct {
		err    error
		advice string
		sized  bool
	}{
		{err: syscall.EMFILE, advice: "ulimit -n"},
		{err: syscall.EFBIG, advice: "ulimit -f", sized: true},
		{err: syscall.ENOMEM, advice: "ulimit -v", sized: true},
		{err: syscall.EACCES},
	} {
		met := fmt.Errorf("bus: map: %w", tc.err)
		err := withAdvice(withAdvice(met, setting), setting)
		if said := withAdvice(limits.Explain(met), setting); said.Error() != err.Error() {
			t.Errorf("%v, of an error without advice, and %v, of one that has some", err, said)
		}
		if !errors.Is(err, tc.err) {
			t.Errorf("%v is no %v any more", err, tc.err)
		}
		if got := strings.Count(err.Error(), "ulimit"); (got == 1) != (tc.advice != "") || !strings.Contains(err.Error(), tc.advice) {
			t.Errorf("%v: want the advice %q once, or none", err, tc.advice)
		}
		if got := strings.Count(err.Error(), setting); (got == 1) != tc.sized {
			t.Errorf("%v: names %s %d times", err, setting, got)
		}
		if without := withAdvice(met, "").Error(); strings.Contains(without, "store") {
			t.Errorf("%s: of a store that has no size to choose", without)
		}
	}
	full := fmt.Errorf("bus: open: %w", &shmstore.MemoryError{NeededBytes: 256 << 20})
	if err := withAdvice(withAdvice(full, setting), setting); !errors.Is(err, shmstore.ErrMemory) || strings.Count(err.Error(), setting) != 1 {
		t.Errorf("%v: of a store that finds no memory, want %s once", err, setting)
	}
	if err := withAdvice(full, ""); strings.Contains(err.Error(), setting) {
		t.Errorf("%v: names a setting that the verb does not have", err)
	}
	if err := withAdvice(nil, setting); err != nil {
		t.Errorf("advice for nothing: %v", err)
	}
}

// TestSizeSetting: the verbs that have a store of a size that can be chosen.
func TestSizeSetting(t *testing.T) {
	for line, want := range map[string]string{
		"run": "ring_bytes", "status": "", "submit": "", "connector put": "", "queue": "",
	} {
		cmd, rest, err := newRootCmd(func() {}).Find(strings.Fields(line))
		if err != nil || len(rest) > 0 {
			t.Fatalf("%s: %v, %q left", line, err, rest)
		}
		if got := sizeSetting(cmd); got != want {
			t.Errorf("%s: the size of its store is set by %q, want %q", line, got, want)
		}
	}
}
