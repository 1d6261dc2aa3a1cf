package limits

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
)

// A Limit is what a process can have too much of.
type Limit struct {
	Err    error  // of the system, where it is met
	Advice string // what to do
	Memory bool   // a smaller store is a remedy, too
}

var all = []Limit{
	{Err: syscall.EMFILE, Advice: "raise the limit of this process (ulimit -n)"},
	{Err: syscall.EFBIG, Advice: "raise the limit of this process (ulimit -f)", Memory: true},
	{Err: syscall.ENOMEM, Advice: "raise the limit of this process (ulimit -v), or free memory", Memory: true},
}

// Met returns the limit that an error tells of.
func Met(err error) (l Limit, ok bool) {
	for _, l := range all {
		if errors.Is(err, l.Err) {
			return l, true
		}
	}
	return Limit{}, false
}

// Explain adds what to do to an error that tells of a limit, if that does not stand there.
func Explain(err error) error {
	if l, ok := Met(err); ok && !strings.Contains(err.Error(), l.Advice) {
		return fmt.Errorf("%w: %s", err, l.Advice)
	}
	return err
}
