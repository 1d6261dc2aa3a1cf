package pythontest_test

import (
	"errors"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

// echo answers each order with the order, until the order is "end".
const echo = `
import json, sys
import omnibus
for line in sys.stdin:
    if json.loads(line) == "end":
        sys.exit(3)
    print(line, end="", flush=True)
`

func TestProcess(t *testing.T) {
	p := pythontest.Start(t, pythontest.Command(t, "-c", echo))
	p.Tell(map[string]any{"b": []int{1}, "a": "text"})
	p.Tell(2)
	p.Want(map[string]any{"a": "text", "b": []float64{1}})
	var n int
	if err := p.Answer(&n); err != nil || n != 2 {
		t.Errorf("got %d, %v", n, err)
	}
	p.Tell("end")
	if err := p.Answer(&n); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
	if err := p.End(); err == nil || err.Error() != "exit status 3" {
		t.Errorf("it ended with %v", err)
	}
	if err := p.End(); err != nil {
		t.Errorf("once more: %v", err)
	}
}

// failing is a test that records a failure.
type failing struct {
	testing.TB
	failed bool
}

func (f *failing) Errorf(string, ...any) { f.failed = true }

func TestWrongAnswer(t *testing.T) {
	for name, c := range map[string]struct {
		told, want any
		wrong      bool
	}{
		"the same":     {[]any{1, "a", nil}, []any{1.0, "a", nil}, false},
		"another":      {[]any{1, "a"}, []any{1, "b"}, true},
		"text, number": {"1", 1, true},
		"a key less":   {map[string]any{"a": 1}, map[string]any{"a": 1, "b": nil}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := &failing{TB: t}
			p := pythontest.Start(f, pythontest.Command(t, "-c", echo))
			p.Tell(c.told)
			if p.Want(c.want); f.failed != c.wrong {
				t.Errorf("told %v, want %v: failed %v", c.told, c.want, f.failed)
			}
		})
	}
}
