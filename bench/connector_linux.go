package bench

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

//go:embed python_connector.py
var connectorScript string

// A connectorSide is two processes, of which one puts values and measures how long
// that takes until the other has got and read them. This process looks on, and
// hosts the bus that both are attached to where neither does.
type connectorSide struct {
	hosted
	dir    string
	putter *peer
	getter *peer
	questions
}

func openConnectorSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	s := &connectorSide{}
	if err := s.open(ctx, opts, spec); err != nil {
		return nil, errors.Join(err, s.close(context.WithoutCancel(ctx)))
	}
	return s, nil
}

func (s *connectorSide) open(ctx context.Context, opts Options, spec peerSpec) (err error) {
	if spec.Connector.By == byRing {
		if err := s.place(ctx, &spec); err != nil {
			return err
		}
	}
	acks, noted, err := os.Pipe()
	if err != nil {
		return err
	}
	notes, note, err := os.Pipe()
	files := []*os.File{acks, noted, notes, note}
	defer func() { closeFiles(files) }() // the processes have their own
	if err != nil {
		return err
	}
	steps := []func() error{
		func() (err error) {
			s.putter, s.answers, err = startEnd(ctx, opts, spec, false, []*os.File{acks, note})
			return err
		},
		func() (err error) {
			s.getter, _, err = startEnd(ctx, opts, spec, true, []*os.File{notes, noted})
			return err
		},
		s.awaitPutter,
	}
	if spec.Connector.Hosts { // before anybody calls
		steps[1], steps[2] = steps[2], steps[1]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	closeFiles(files) // so that each of them notices when the other is gone
	files = nil
	_, err = s.run(ctx, 1) // which waits until both are there
	return err
}

// place makes the place where a bus is to listen, and, where a third process is to
// host it, that bus.
func (s *connectorSide) place(ctx context.Context, spec *peerSpec) (err error) {
	if s.dir, err = os.MkdirTemp("", "omnibus-bench"); err != nil {
		return err
	}
	spec.Socket = filepath.Join(s.dir, "socket")
	if spec.Connector.Hosts {
		return nil
	}
	s.hosted, err = hostFor(ctx, *spec, shmstore.Options{})
	return err
}

// missingMark is how a process says that it lacks something, in place of being
// ready.
const missingMark = "missing "

// awaitPutter waits until the process that puts can be told to.
func (s *connectorSide) awaitPutter() error {
	s.ask = s.putter.stdin
	line, err := s.answers.ReadString('\n')
	if err != nil {
		return s.putter.explain(err)
	}
	if what, missing := strings.CutPrefix(strings.TrimSpace(line), missingMark); missing {
		return fmt.Errorf("%w: %s", errors.ErrUnsupported, what)
	}
	return nil
}

// startEnd starts one of the processes: this program, or a script. It reads from the
// first of the files and writes to the second.
func startEnd(ctx context.Context, opts Options, spec peerSpec, gets bool, files []*os.File) (*peer, *bufio.Reader, error) {
	own := *spec.Connector
	own.Gets = gets
	spec.Connector = &own
	cmd, err := peerCommand(ctx, opts, spec, files)
	if own.Python {
		cmd, err = connectorCommand(ctx, spec, files)
	}
	if err != nil {
		return nil, nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	p, err := start(cmd)
	if errors.Is(err, exec.ErrNotFound) {
		err = fmt.Errorf("%w: %w", errors.ErrUnsupported, err)
	}
	return p, bufio.NewReader(out), err
}

func connectorCommand(ctx context.Context, spec peerSpec, files []*os.File) (*exec.Cmd, error) {
	described, err := json.Marshal(map[string]any{
		"by": spec.Connector.By, "gets": spec.Connector.Gets, "size": spec.Pattern.Size,
		"socket": spec.Socket, "directory": omniDirectory(), "read": firstFile, "write": firstFile + 1,
	})
	if err != nil {
		return nil, err
	}
	cmd := pythonCommand(ctx, connectorScript)
	cmd.Args = append(cmd.Args, string(described))
	cmd.ExtraFiles = files
	return cmd, nil
}

func (s *connectorSide) run(_ context.Context, n int) (time.Duration, error) {
	took, err := s.put(n)
	if err != nil {
		// Either of them can be the one that was the first to end.
		return 0, s.putter.explain(s.getter.explain(err))
	}
	return took, nil
}

func (s *connectorSide) close(ctx context.Context) error {
	var errs []error
	for _, p := range []*peer{s.putter, s.getter} { // the getter ends with the putter
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	if s.putter != nil {
		errs = append(errs, removeLeft(s.putter.cmd.Process.Pid), removeLeft(os.Getpid())) // keys, and a store
	}
	errs = append(errs, s.hosted.close(ctx))
	if s.dir != "" {
		errs = append(errs, os.RemoveAll(s.dir))
	}
	return errors.Join(errs...)
}

// removeLeft removes what a process has put that did not end by itself, as when a run
// is interrupted. Of all means only a connector's segments would go anyway.
func removeLeft(pid int) error {
	names, err := filepath.Glob(bareDirectory + "*" + benchRequest(pid) + "_*")
	for _, name := range names {
		if gone := os.Remove(name); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
