package host

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// ErrConfig is wrapped by the errors of a run that could not begin because of its file or its options.
var ErrConfig = errors.New("invalid configuration")

// ErrQuit is wrapped by the error of a run that Options.Quit ended. Its open requests were aborted.
var ErrQuit = errors.New("told to end at once")

var errInterrupted = errors.New("interrupted before it was ready")

// A StageError says why a stage did not become ready.
type StageError struct {
	Stage  string
	Served bool          // the stage was served, and given up before the other stages were ready
	Death  *child.Death  // of the process that ended; nil: none attached
	Err    error         // why the stage was given up; nil: it was not
	After  time.Duration // how long the host waited for a process to attach
	At     string        // path of the socket
}

// Error gives the cause and the remedy.
func (e *StageError) Error() string {
	if e.Death == nil {
		return fmt.Sprintf("stage %q: no process attached within %v, its start_timeout: start a process that serves it, with %s=%s in its environment", e.Stage, e.After, node.EnvSocket, e.At)
	}
	why := e.Death.Report()
	if e.Err != nil {
		why = fmt.Sprintf("%v; %s", e.Err, why)
	}
	if e.Served {
		return fmt.Sprintf("stage %q was given up before the other stages were ready: %s", e.Stage, why)
	}
	text := fmt.Sprintf("stage %q did not start: %s", e.Stage, why)
	if strings.Contains(e.Death.Reason, "never became ready") || e.Death.Code == 0 {
		text += fmt.Sprintf("\na process is ready when it serves its stage at the socket that %s names: run() does that in Python, Node.Serve in Go", node.EnvSocket)
	}
	return text + "\nthe run ends with it: only a process that has served its stage before is started again (restart); mend its command (exec) first"
}

// Unwrap returns the reason for giving the stage up.
func (e *StageError) Unwrap() error { return e.Err }

// A MainError says that the main process failed.
type MainError struct {
	Program string
	Code    int // the exit code; for a signal 128 plus its number, as in shells
	Status  string
}

func (e *MainError) Error() string { return fmt.Sprintf("%s ended with %s", e.Program, e.Status) }
