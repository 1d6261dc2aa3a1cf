package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"sync"
	"time"
)

// A peer is another process of a side. It ends when its standard input ends, so
// that it does not outlive this process.
type peer struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	stderr bytes.Buffer
	exited chan struct{} // closed when it is dead
	err    error         // how it ended; set before exited is closed

	mu         sync.Mutex
	onExitFunc func(error) // called at its death; nil: none
}

// firstFile is the descriptor number of the first of a child's extra files.
const firstFile = 3

// startPeer runs this program again as a peer, with the files.
func startPeer(ctx context.Context, opts Options, spec peerSpec, files []*os.File) (*peer, error) {
	if len(opts.Peer) == 0 {
		return nil, fmt.Errorf("%w: Peer is empty: it is needed to start other processes", ErrOptions)
	}
	encoded, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, exe)
	cmd.Args = append(slices.Clone(opts.Peer), string(encoded))
	cmd.ExtraFiles = files
	return start(cmd)
}

// start runs a command as a peer.
func start(cmd *exec.Cmd) (*peer, error) {
	p := &peer{cmd: cmd, exited: make(chan struct{})}
	cmd.Stderr = &p.stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	p.stdin = stdin
	// It may have children, which would outlive it if it were killed.
	cmd.Cancel, cmd.WaitDelay = stdin.Close, peerGrace
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.watch()
	return p, nil
}

func (p *peer) watch() {
	p.err = p.cmd.Wait()
	close(p.exited)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.onExitFunc != nil {
		p.onExitFunc(errPeerDied)
	}
}

var errPeerDied = errors.New("the process at the other end has ended")

// onExit has f called at the death of the peer; at once, if the peer is dead.
func (p *peer) onExit(f func(error)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.onExitFunc = f
	select {
	case <-p.exited:
		f(errPeerDied)
	default:
	}
}

// exitWait bounds the wait for the exit of a dying process.
const exitWait = time.Second

// explain adds the peer's standard error to an error that its death may have caused.
func (p *peer) explain(err error) error {
	select {
	case <-p.exited:
		return fmt.Errorf("%w: %w: %w %s", err, errPeerDied, p.err, bytes.TrimSpace(p.stderr.Bytes()))
	case <-time.After(exitWait):
		return err
	}
}

// peerGrace bounds the time that a peer takes to end.
const peerGrace = 5 * time.Second

// close ends the peer, and waits until it has ended.
func (p *peer) close() error {
	p.mu.Lock()
	p.onExitFunc = nil // no run is waiting for it
	p.mu.Unlock()
	_ = p.stdin.Close()
	select {
	case <-p.exited:
	case <-time.After(peerGrace):
		_ = p.cmd.Process.Kill()
		<-p.exited
		return fmt.Errorf("the process at the other end did not end within %v", peerGrace)
	}
	return nil
}

// untilHungUp runs f until it fails, or standard input ends.
func untilHungUp(stdin io.Reader, f func() error) error {
	answered := make(chan error, 1)
	go func() { answered <- f() }()
	over := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, stdin)
		close(over)
	}()
	select {
	case err := <-answered:
		select {
		case <-over: // the other process closed its connection before the standard input
			return nil
		default:
			return err
		}
	case <-over:
		return nil // the goroutine's resources are freed with the process
	}
}
