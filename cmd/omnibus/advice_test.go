package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
)

// TestAdvice: who meets a limit of the system is told which one, once.
func TestAdvice(t *testing.T) {
	for _, tc := range []struct {
		err    error
		advice string
	}{
		{err: syscall.EMFILE, advice: "ulimit -n"},
		{err: syscall.EFBIG, advice: "ulimit -f"},
		{err: syscall.ENOMEM, advice: "ulimit -v"},
		{err: syscall.EACCES},
	} {
		err := withAdvice(withAdvice(fmt.Errorf("bus: map: %w", tc.err)))
		if !errors.Is(err, tc.err) {
			t.Errorf("%v is no %v any more", err, tc.err)
		}
		if got := strings.Count(err.Error(), "ulimit"); (got == 1) != (tc.advice != "") || !strings.Contains(err.Error(), tc.advice) {
			t.Errorf("%v: want the advice %q once, or none", err, tc.advice)
		}
	}
	if err := withAdvice(nil); err != nil {
		t.Errorf("advice for nothing: %v", err)
	}
}
