package limits

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
)

// A Limit is a limit of a process or of the system.
type Limit struct {
	Err    error  // of the system, when the limit is reached
	Advice string // what to do
	Memory bool   // a smaller store is a remedy too
}

// FilesAdvice is the advice for a process that has too many descriptors open.
const FilesAdvice = "raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)"

var all = []Limit{
	{Err: syscall.EMFILE, Advice: FilesAdvice},
	{Err: syscall.ENFILE, Advice: "raise the limit of this machine (fs.file-max)"},
	{Err: syscall.EFBIG, Advice: "raise the limit of this process (ulimit -f)", Memory: true},
	{Err: syscall.ENOMEM, Advice: "raise the limit of this process (ulimit -v), or free memory", Memory: true},
}

// Met returns the limit that has caused an error.
func Met(err error) (l Limit, ok bool) {
	for _, l := range all {
		if errors.Is(err, l.Err) {
			return l, true
		}
	}
	return Limit{}, false
}

// Explain adds the advice to an error that a limit has caused, and for EMFILE the process and its limit. It does not
// change an error that has the advice already, or that no limit has caused.
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
