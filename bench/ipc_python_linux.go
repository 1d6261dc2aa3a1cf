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

//go:embed python_queue.py
var queueScript string

// pythonPath is where the Python client lies in a checkout of the repository.
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

// needPython says what is missing for scripts that use a package.
func needPython(ctx context.Context, name string) error {
	return needCommand(pythonCommand(ctx, "import "+name), "python3 with the package "+name)
}

// needCommand says that something is missing whose command fails.
func needCommand(cmd *exec.Cmd, what string) error {
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %w: %s", what, errors.ErrUnsupported, err, out[bytes.LastIndexByte(bytes.TrimSpace(out), '\n')+1:])
	}
	return nil
}

func openPythonSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	if err := needPython(ctx, pythonClient); err != nil {
		return nil, err
	}
	spec.HostCalls = true
	return openBusSide(ctx, opts, spec, func(spec peerSpec) (*peer, error) { return startPythonStage(ctx, spec) })
}

// startPythonStage starts a stage in Python that sends back what it gets.
func startPythonStage(ctx context.Context, spec peerSpec) (*peer, error) {
	cmd := pythonCommand(ctx, stageScript)
	if spec.Carrier == byForward {
		cmd.Args = append(cmd.Args, "forward")
	}
	cmd.Env = append(cmd.Env, node.EnvSocket+"="+spec.Socket, node.EnvStage+"="+peerStage)
	return start(cmd)
}

// A queueSide is two of Python's queues, to a process that sends back what it
// gets. Python measures; this side says how often, and is told how long.
type queueSide struct {
	peer *peer
	questions
}

// questions are put to a peer that measures: how often, and it answers how long.
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

func openQueueSide(ctx context.Context, spec peerSpec) (side, error) {
	if err := needPython(ctx, "multiprocessing"); err != nil {
		return nil, err
	}
	cmd := pythonCommand(ctx, queueScript)
	cmd.Args = append(cmd.Args, strconv.Itoa(spec.Pattern.Size))
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p, err := start(cmd)
	if err != nil {
		return nil, err
	}
	return &queueSide{p, questions{p.stdin, bufio.NewReader(out)}}, nil
}

func (s *queueSide) run(_ context.Context, n int) (time.Duration, error) {
	took, err := s.put(n)
	if err != nil {
		return 0, s.peer.explain(err)
	}
	return took, nil
}

func (s *queueSide) close(context.Context) error { return s.peer.close() }
