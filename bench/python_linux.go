package bench

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/node"
)

//go:embed python_stage.py
var stageScript string

//go:embed python_caller.py
var callerScript string

//go:embed python_zmq.py
var zmqScript string

//go:embed python_queue.py
var queueScript string

// pythonPath is the folder of the Python client in a checkout of the repository.
const pythonPath = "clients/python/src"

// pythonClient is the package of the Python client.
const pythonClient = "omnibus"

// pythonVariable names the Python that runs scripts.
const pythonVariable = "OMNIBUS_PYTHON"

// pythonCommand runs a script, which finds the Python client in this checkout,
// or where it is installed.
func pythonCommand(ctx context.Context, script string) *exec.Cmd {
	program := os.Getenv(pythonVariable)
	if program == "" {
		program = "python3"
	}
	cmd := exec.CommandContext(ctx, program, "-c", script)
	cmd.Env = os.Environ()
	dir, err := os.Getwd()
	for err == nil {
		path := filepath.Join(dir, pythonPath)
		if _, missing := os.Stat(path); missing == nil {
			cmd.Env = append(cmd.Env, "PYTHONPATH="+path+string(os.PathListSeparator)+os.Getenv("PYTHONPATH"))
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
		dir = filepath.Dir(dir)
	}
	return cmd
}

// needPython returns an error if Python lacks a package.
func needPython(ctx context.Context, name string) error {
	return needCommand(pythonCommand(ctx, "import "+name), "python3 with the package "+name)
}

// needCommand returns an error that names the missing part, if the command fails.
func needCommand(cmd *exec.Cmd, what string) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %w: %s", what, errors.ErrUnsupported, err, out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:])
	}
	return nil
}

// A pythonPair is a process in Python that calls another one, and measures. This process sends it
// the number of calls, and receives their time.
type pythonPair struct {
	*cluster
	questions
}

// questions go to a peer that measures: each is a number of repetitions, and its answer the time
// in nanoseconds.
type questions struct {
	ask     io.Writer
	answers *bufio.Reader
}

func (q questions) put(n int) (time.Duration, error) {
	if _, err := fmt.Fprintln(q.ask, n); err != nil {
		return 0, err
	}
	line, err := q.answers.ReadString('\n')
	if err != nil {
		return 0, err
	}
	ns, err := strconv.ParseInt(strings.TrimSpace(line), 10, 64)
	return time.Duration(ns), err
}

// openPythonPair opens a pair with a bus between the two, whose host is a process of its own.
func openPythonPair(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	if err := needPython(ctx, pythonClient); err != nil {
		return nil, err
	}
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &pythonPair{cluster: c}
	return warmedUp(ctx, s, c, spec, s.openBus(ctx, spec))
}

func (s *pythonPair) openBus(ctx context.Context, spec peerSpec) error {
	spec.Socket = s.path("host")
	if _, err := s.start(ctx, spec.as(byBusHost)); err != nil {
		return err
	}
	stage := pythonCommand(ctx, stageScript)
	stage.Env = append(stage.Env, node.EnvSocket+"="+spec.Socket, node.EnvStage+"="+peerStage)
	if err := s.add(start(stage)); err != nil {
		return err
	}
	return s.call(pythonCommand(ctx, callerScript), strconv.Itoa(spec.Pattern.Size), spec.Socket)
}

// openZMQSide opens a pair with two sockets of ZeroMQ between the two.
func openZMQSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	return openScript(ctx, opts, spec, zmqScript, "zmq")
}

// openQueueSide opens a pair with two of Python's queues between the two.
func openQueueSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	return openScript(ctx, opts, spec, queueScript, "multiprocessing")
}

// openScript opens a pair by a script that starts the other process itself.
func openScript(ctx context.Context, opts Options, spec peerSpec, script, needs string) (side, error) {
	if err := needPython(ctx, needs); err != nil {
		return nil, err
	}
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &pythonPair{cluster: c}
	return warmedUp(ctx, s, c, spec, s.call(pythonCommand(ctx, script), strconv.Itoa(spec.Pattern.Size), s.path(needs)))
}

// call starts the process that calls.
func (s *pythonPair) call(caller *exec.Cmd, args ...string) error {
	caller.Args = append(caller.Args, args...)
	out, err := caller.StdoutPipe()
	if err != nil {
		return err
	}
	p, err := start(caller)
	if err = s.add(p, err); err != nil {
		return err
	}
	s.questions = questions{p.stdin, bufio.NewReader(out)}
	return nil
}

func (s *pythonPair) run(_ context.Context, n int) (time.Duration, error) {
	took, err := s.put(n)
	if err != nil {
		return 0, s.explain(err)
	}
	return took, nil
}
