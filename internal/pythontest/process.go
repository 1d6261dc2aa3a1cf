package pythontest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"reflect"
	"testing"
)

// Process is a program that handles orders. One goroutine at a time may call Tell, and
// one may wait for answers.
type Process struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	out   *bufio.Reader
	ended bool
}

// Start starts a program. If it has not ended at the end of the test, it is killed.
func Start(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	in, inErr := cmd.StdinPipe()
	out, outErr := cmd.StdoutPipe()
	if err := errors.Join(inErr, outErr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	p := &Process{t: t, cmd: cmd, in: in, out: bufio.NewReader(out)}
	t.Cleanup(p.Kill)
	return p
}

// Tell sends an order to the process, and does not wait for the answer.
func (p *Process) Tell(what any) {
	p.t.Helper()
	line, err := json.Marshal(what)
	if err == nil {
		_, err = p.in.Write(append(line, '\n'))
	}
	if err != nil {
		p.t.Errorf("tell Python %v: %v", what, err)
	}
}

// Answer waits for the next answer, and decodes it into answer. The error is io.EOF if
// the process ends before it answers.
func (p *Process) Answer(answer any) error {
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return err //nolint:wrapcheck // io.EOF, as promised
	}
	return json.Unmarshal(line, answer) //nolint:wrapcheck // of one line
}

// Want waits for the next answer, and fails the test if the answer is not the JSON of want.
func (p *Process) Want(want any) {
	p.t.Helper()
	var got json.RawMessage
	if err := p.Answer(&got); err != nil {
		p.t.Fatal("the Python process has no answer: ", err)
	}
	text, err := json.Marshal(want)
	if err != nil {
		p.t.Fatal(err)
	}
	if !reflect.DeepEqual(plain(got), plain(text)) {
		p.t.Errorf("Python answers %s, want %s", bytes.TrimSpace(got), text)
	}
}

// plain decodes JSON, for a comparison without the order of keys and the forms of numbers.
func plain(text []byte) (v any) {
	_ = json.Unmarshal(text, &v) // it was decoded before, or has just been encoded
	return v
}

// End closes the standard input of the process and waits until it has ended, the
// first time it is called.
func (p *Process) End() error {
	if p.ended {
		return nil
	}
	p.ended = true
	_ = p.in.Close()
	return p.cmd.Wait() //nolint:wrapcheck // the caller knows the process
}

// Kill ends the process as a crash would, if it has not ended.
func (p *Process) Kill() {
	if !p.ended {
		p.Crash()
		_ = p.End()
	}
}

// Crash is Kill without the wait. The wait of Kill also covers processes that the process
// has started and that outlive it.
func (p *Process) Crash() { _ = p.cmd.Process.Kill() }
