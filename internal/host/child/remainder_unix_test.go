//go:build unix

package child

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
)

// heldPipe returns a pipe whose writing end outlives the process, as if a descendant held it.
func heldPipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = r.Close(), w.Close() })
	return r, w
}

// slowWriter blocks until may is closed.
type slowWriter struct{ began, may chan struct{} }

func (w slowWriter) Write(p []byte) (int, error) {
	select {
	case w.began <- struct{}{}:
	default:
	}
	<-w.may
	return len(p), nil
}

// Output from before a process's death is read, however late its reader is.
func TestOutputBeforeDeathIsRead(t *testing.T) {
	r, w := heldPipe(t)
	slow := slowWriter{began: make(chan struct{}, 1), may: make(chan struct{})}
	o := newOutput("talker/0", 10, &console{log: slog.New(slog.DiscardHandler), w: slow})
	read := make(chan struct{})
	go func() {
		defer close(read)
		o.read(r)
	}()
	say(t, w, "first\n")
	<-slow.began
	say(t, w, "why it dies\nand half a line")
	stopWaiting(r)
	close(slow.may)
	<-read
	if got, want := o.lastLines.last(10), []string{"first", "why it dies", "and half a line"}; !slices.Equal(got, want) {
		t.Errorf("kept %q, want %q", got, want)
	}
}

// A descendant that writes after every read does not delay the end of the reading.
func TestDescendantDoesNotDelayTheEnd(t *testing.T) {
	r, w := heldPipe(t)
	say(t, w, "last words\n")
	stopWaiting(r)
	newOutput("talker/0", 10, &console{log: slog.New(slog.DiscardHandler), w: echo{w}}).read(r)
}

// echo writes a piece after each piece that it gets.
type echo struct{ to *os.File }

func (e echo) Write(p []byte) (int, error) {
	_, err := e.to.WriteString(strings.Repeat("and on\n", 512))
	return len(p), err
}

func say(t *testing.T, w *os.File, text string) {
	t.Helper()
	if _, err := w.WriteString(text); err != nil {
		t.Fatal(err)
	}
}
