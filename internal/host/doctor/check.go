package doctor

import (
	"context"
	"fmt"
)

// A Verdict is the outcome of a check.
type Verdict string

// The verdicts.
const (
	OK     Verdict = "ok"
	Note   Verdict = "note"   // usable, in another way or within a limit
	Failed Verdict = "failed" // processes cannot take part
)

// A Check is the result of one check.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Advice  string  `json:"advice,omitempty"` // the fallback, or the remedy
}

// Healthy reports whether nothing required is missing.
func Healthy(checks []Check) bool {
	for _, c := range checks {
		if c.Verdict == Failed {
			return false
		}
	}
	return true
}

// Subject is what to examine. The zero value is this machine.
type Subject struct {
	// Folder is the folder of sockets.
	Folder string
	// Python is the interpreter; default python3.
	Python string
	// GPUs is the answer of the GPU driver, which the caller has asked.
	GPUs GPUs
}

// Examine runs all checks. The context bounds their time.
func Examine(ctx context.Context, s Subject) []Check {
	if s.Python == "" {
		s.Python = "python3"
	}
	checks := append(system(s), gpus(s.GPUs)...)
	return append(checks, python(ctx, s.Python)...)
}

// found is the result of a check that succeeded.
func found(name, format string, args ...any) Check {
	return Check{Name: name, Verdict: OK, Found: fmt.Sprintf(format, args...)}
}

// note is the result of a check that found a limitation.
func note(name, what, advice string) Check { return Check{name, Note, what, advice} }

// missing is the result of a check for something required that is missing.
func missing(name string, err error, advice string) Check {
	return Check{name, Failed, err.Error(), advice}
}
