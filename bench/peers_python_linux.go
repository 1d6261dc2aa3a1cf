package bench

import (
	"bufio"
	"context"
	_ "embed"
	"os/exec"
	"strconv"
	"time"
)

//go:embed python_caller.py
var callerScript string

//go:embed python_zmq.py
var zmqScript string

// A pythonPair is a process in Python that calls another one, and measures.
type pythonPair struct {
	*cluster
	questions
}

// openPythonPair has a bus between the two, whose host is a process of its own.
func openPythonPair(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	if err := needPython(ctx, pythonClient); err != nil {
		return nil, err
	}
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &pythonPair{cluster: c}
	return settled(ctx, s, c, spec, s.openBus(ctx, spec))
}

func (s *pythonPair) openBus(ctx context.Context, spec peerSpec) error {
	spec.Socket = s.path("host")
	if _, err := s.start(ctx, spec.as(byBusHost)); err != nil {
		return err
	}
	if err := s.add(startPythonStage(ctx, spec)); err != nil {
		return err
	}
	return s.call(pythonCommand(ctx, callerScript), strconv.Itoa(spec.Pattern.Size), spec.Socket)
}

// openZMQSide has two sockets of ZeroMQ between the two.
func openZMQSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	if err := needPython(ctx, "zmq"); err != nil {
		return nil, err
	}
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &pythonPair{cluster: c}
	return settled(ctx, s, c, spec, s.call(pythonCommand(ctx, zmqScript), strconv.Itoa(spec.Pattern.Size), s.path("zmq")))
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
