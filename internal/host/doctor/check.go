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
	Note   Verdict = "note"   // it works, in another way or within a limit
	Failed Verdict = "failed" // processes cannot take part
)

// A Check is one thing that was looked at.
type Check struct {
	Name    string  `json:"name"`
	Verdict Verdict `json:"verdict"`
	Found   string  `json:"found"`
	Advice  string  `json:"advice,omitempty"` // what falls back, or what to do
}

// Healthy reports whether nothing that is needed is missing.
func Healthy(checks []Check) bool {
	for _, c := range checks {
		if c.Verdict == Failed {
			return false
		}
	}
	return true
}

// Subject is what to examine. The zero value is this machine as it is.
type Subject struct {
	// Folder is where sockets are to go.
	Folder string
	// Python is the interpreter; default python3.
	Python string
	// GPUs is what their driver says, which the caller has asked.
	GPUs GPUs
}

// Examine looks at everything. The context bounds what it waits for.
func Examine(ctx context.Context, s Subject) []Check {
	if s.Python == "" {
		s.Python = "python3"
	}
	checks := append(system(s), gpus(s.GPUs)...)
	return append(checks, python(ctx, s.Python)...)
}

// found is a check that went well.
func found(name, format string, args ...any) Check {
	return Check{Name: name, Verdict: OK, Found: fmt.Sprintf(format, args...)}
}

// note is a check of something that is not as it could be.
func note(name, what, advice string) Check { return Check{name, Note, what, advice} }

// missing is a check of something that is needed and not there.
func missing(name string, err error, advice string) Check {
	return Check{name, Failed, err.Error(), advice}
}
