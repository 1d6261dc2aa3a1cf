package limits

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// A Limit is what a process can have too much of.
type Limit struct {
	Err    error  // of the system, where it is met
	Advice string // what to do
	Memory bool   // a smaller store is a remedy, too
}

// FilesAdvice says what to do where a process has too many descriptors open.
const FilesAdvice = "raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)"

var all = []Limit{
	{Err: syscall.EMFILE, Advice: FilesAdvice},
	{Err: syscall.ENFILE, Advice: "raise the limit of this machine (fs.file-max)"},
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

// Explain adds which process has met a limit, what that is, and what to do, to an error that tells of a limit, if what
// to do does not stand there.
func Explain(err error) error {
	l, ok := Met(err)
	switch {
	case !ok || strings.Contains(err.Error(), l.Advice):
		return err
	case errors.Is(l.Err, syscall.EMFILE):
		return fmt.Errorf("%w: process %d may have %d descriptors open: %s", err, os.Getpid(), Files(), l.Advice)
	}
	return fmt.Errorf("%w: %s", err, l.Advice)
}
