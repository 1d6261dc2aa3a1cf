package host

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// ErrConfig is wrapped by the errors of a run that could not begin because of
// what the file, or the options, ask for.
var ErrConfig = errors.New("invalid configuration")

// ErrQuit is wrapped by the error of a run that Options.Quit ended: what was open then
// is aborted.
var ErrQuit = errors.New("told to end at once")

var errInterrupted = errors.New("interrupted before it was ready")

// A StageError says why a stage did not get ready.
type StageError struct {
	Stage  string
	Served bool          // it was served, and given up before the others were
	Death  *child.Death  // of the process that ended; nil: none attached
	Err    error         // why it was given up; nil: it was not
	After  time.Duration // that was waited for somebody to attach
	At     string        // the socket
}

// Error says what is known and what to do.
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

// Unwrap returns why the process was given up.
func (e *StageError) Unwrap() error { return e.Err }

// A MainError says that the main process did not end well.
type MainError struct {
	Program string
	Code    int // the exit code; of a signal 128 more than its number, as shells have it
	Status  string
}

func (e *MainError) Error() string { return fmt.Sprintf("%s ended with %s", e.Program, e.Status) }
