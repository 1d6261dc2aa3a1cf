package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

var (
	// ErrClosed is returned by Start after Close.
	ErrClosed = errors.New("child: the manager is closed")
	// errStuck is wrapped by the errors of Stop and Close if a child has not ended some time after
	// SIGKILL.
	errStuck = errors.New("not gone 5s after SIGKILL: it hangs in the kernel (see /proc/PID/stack), or Options.Out or OnEvent blocks")
)

// A StartError says why a process could not be started.
type StartError struct {
	Name    string // of the child
	Program string // as in the command line
	Path    string // where it was found; empty: not found
	Search  string // the PATH that was searched; empty: Program is a path
	Dir     string // the working directory; empty: that of the host
	Err     error
}

// Error says what was searched, where, and what to do.
func (e *StartError) Error() string {
	return fmt.Sprintf("child: start %s: %s", e.Name, e.text())
}

func (e *StartError) text() string {
	var badDir *dirError
	switch {
	case errors.As(e.Err, &badDir):
		return badDir.Error()
	case e.Path == "" && e.Search != "" && errors.Is(e.Err, fs.ErrPermission):
		return fmt.Sprintf("%q is in PATH (%s), but is not an executable file: make it one, or name an interpreter before it", e.Program, e.Search)
	case e.Path == "" && e.Search != "":
		return fmt.Sprintf("%q is not in PATH (%s): install it, set PATH, or give its full path", e.Program, e.Search)
	case e.Path == "" && !strings.ContainsAny(e.Program, pathSeparators):
		return fmt.Sprintf("%q cannot be found, because PATH is empty: set PATH, or give its full path", e.Program)
	case errors.Is(e.Err, syscall.ENOEXEC):
		return fmt.Sprintf("%s is not a program for this machine, nor a script that begins with #! and its interpreter", e.Path)
	case e.Path != "" && errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("%s is there, but the interpreter or loader that it names is not: look at its first line", e.Path)
	case errors.Is(e.Err, fs.ErrNotExist):
		return fmt.Sprintf("there is no file %q%s: check the path", e.Program, e.from())
	case errors.Is(e.Err, syscall.EMFILE):
		return fmt.Sprintf("%q%s: %v: process %d has too many: raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)",
			e.Program, e.from(), e.Err, os.Getpid())
	case e.Path == "" && (errors.Is(e.Err, fs.ErrPermission) || errors.Is(e.Err, syscall.EISDIR)):
		return fmt.Sprintf("%q%s is not an executable file: make it one, or name an interpreter before it", e.Program, e.from())
	}
	return fmt.Sprintf("%q%s: %v", e.Program, e.from(), e.Err)
}

func (e *StartError) from() string {
	if e.Dir == "" {
		return ""
	}
	return fmt.Sprintf(" (from %s)", e.Dir)
}

// Unwrap returns the cause.
func (e *StartError) Unwrap() error { return e.Err }

// permanent reports whether another try would fail in the same way. All other causes are a lack of
// memory, descriptors or processes, or a program file that is being written.
func (e *StartError) permanent() bool {
	for _, cause := range []error{
		fs.ErrNotExist, fs.ErrPermission, exec.ErrNotFound,
		syscall.ENOTDIR, syscall.EISDIR, syscall.ENOEXEC, syscall.EINVAL, syscall.E2BIG,
	} {
		if errors.Is(e.Err, cause) {
			return true
		}
	}
	return false
}

// A dirError reports an unusable working directory.
type dirError struct {
	dir string
	err error
}

func (e *dirError) Error() string {
	switch {
	case errors.Is(e.err, fs.ErrNotExist):
		return fmt.Sprintf("the working directory %s does not exist: create it, or name another", e.dir)
	case errors.Is(e.err, syscall.ENOTDIR):
		return fmt.Sprintf("the working directory %s is not a directory", e.dir)
	}
	return fmt.Sprintf("the working directory %s: %v", e.dir, e.err)
}

func (e *dirError) Unwrap() error { return e.err }

// A limitError says that a child reached its limit of restarts.
type limitError struct {
	Restarts int
	Window   time.Duration // zero: in a row, without a process that became ready
}

func (e *limitError) Error() string {
	if e.Window == 0 {
		return fmt.Sprintf("%d restarts in a row, and it never became ready", e.Restarts)
	}
	return fmt.Sprintf("%d restarts within %v", e.Restarts, e.Window)
}
