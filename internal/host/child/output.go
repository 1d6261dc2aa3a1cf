package child

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"sync"
	"unicode"
	"unicode/utf8"
)

const (
	// maxLineBytes bounds a line, as it is read and as it is kept.
	maxLineBytes = 4096
	// readBytes is the capacity of a pipe: one read takes all that is there.
	readBytes = 64 << 10
	// maxRemainderBytes is the largest capacity that a process without a privilege may give its pipe on
	// Linux.
	maxRemainderBytes = 1 << 20
)

// An output reads what one process prints.
type output struct {
	prefix    string
	lastLines *ring
	console   *console
}

func newOutput(name string, lines int, c *console) *output {
	return &output{prefix: name + " | ", lastLines: &ring{size: lines}, console: c}
}

// A remainder reads what is left in a pipe whose writer is dead. Other processes may hold the pipe open
// and go on writing, so it reads no more than a pipe can hold.
type remainder struct {
	pipe *os.File
	left int
}

// read reads a pipe until it ends and, after stopWaiting, until the pipe is empty.
func (o *output) read(pipe *os.File) {
	buf := make([]byte, readBytes)
	s := splitter{}
	var from io.Reader = pipe
	for {
		n, err := from.Read(buf)
		if from == pipe && errors.Is(err, os.ErrDeadlineExceeded) {
			from, err = &remainder{pipe, maxRemainderBytes}, nil
		}
		lines := s.split(buf[:n])
		if err != nil {
			lines = append(lines, s.flush()...)
		}
		o.print(lines)
		if err != nil {
			return
		}
	}
}

// print keeps the lines and writes them all at once.
func (o *output) print(lines []string) {
	if len(lines) == 0 {
		return
	}
	var text bytes.Buffer
	for _, line := range lines {
		o.lastLines.add(line)
		text.WriteString(o.prefix)
		text.WriteString(line)
		text.WriteByte('\n')
	}
	o.console.write(text.Bytes())
}

// A splitter splits a stream into lines. A line ends with a line feed. A carriage return starts the
// line over, as on a terminal: a progress bar, which may go on for hours without a line feed, is
// reduced to its last state.
type splitter struct {
	line    []byte // as read, at most maxLineBytes
	dropped int    // bytes of the line beyond that
	reset   bool   // the last byte was a carriage return
}

// split returns the lines that end in data.
func (s *splitter) split(data []byte) []string {
	var lines []string
	for len(data) > 0 {
		i := bytes.IndexAny(data, "\r\n")
		if i < 0 {
			s.add(data)
			return lines
		}
		s.add(data[:i])
		if data[i] == '\n' {
			lines = append(lines, s.finishLine())
		} else {
			s.reset = true
		}
		data = data[i+1:]
	}
	return lines
}

// flush returns the unfinished line, if there is one.
func (s *splitter) flush() []string {
	if len(s.line) == 0 {
		return nil
	}
	return []string{s.finishLine()}
}

func (s *splitter) add(data []byte) {
	if len(data) == 0 {
		return
	}
	if s.reset {
		s.line, s.dropped, s.reset = s.line[:0], 0, false
	}
	n := min(len(data), maxLineBytes-len(s.line))
	s.line = append(s.line, data[:n]...)
	s.dropped += len(data) - n
}

func (s *splitter) finishLine() string {
	whole := s.line
	if s.dropped > 0 {
		whole = wholeRunes(s.line)
	}
	text, rest := printable(whole)
	if rest += len(s.line) - len(whole) + s.dropped; rest > 0 {
		text += fmt.Sprintf(" ... (%d bytes cut)", rest)
	}
	*s = splitter{line: s.line[:0]}
	return text
}

// wholeRunes removes a character at the end that was cut in two.
func wholeRunes(line []byte) []byte {
	for i := len(line) - 1; i >= max(0, len(line)-utf8.UTFMax); i-- {
		if utf8.RuneStart(line[i]) {
			if !utf8.FullRune(line[i:]) {
				return line[:i]
			}
			break
		}
	}
	return line
}

// printable returns the line with everything unprintable escaped, in particular control sequences of
// terminals. Rest is how many bytes of the line are left out because the text would be too long.
func printable(line []byte) (text string, rest int) {
	out := make([]byte, 0, len(line))
	for len(line) > 0 {
		r, n := utf8.DecodeRune(line)
		before := len(out)
		switch {
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, line[0])
		case r == '\t' || unicode.IsPrint(r):
			out = append(out, line[:n]...)
		default:
			quoted := strconv.QuoteRune(r)
			out = append(out, quoted[1:len(quoted)-1]...)
		}
		if len(out) > maxLineBytes {
			return string(out[:before]), len(line)
		}
		line = line[n:]
	}
	return string(out), 0
}

// A ring keeps the last lines.
type ring struct {
	size int

	mu    sync.Mutex
	items []string
	next  int // where the next line goes once items is full
}

func (r *ring) add(line string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.items) < r.size {
		r.items = append(r.items, line)
		return
	}
	r.items[r.next] = line
	r.next = (r.next + 1) % r.size
}

// last returns the last n lines, oldest first.
func (r *ring) last(n int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	n = min(n, len(r.items))
	lines := make([]string, 0, n)
	for i := len(r.items) - n; i < len(r.items); i++ {
		lines = append(lines, r.items[(r.next+i)%len(r.items)])
	}
	return lines
}

// A console is the writer that all children share.
type console struct {
	log *slog.Logger

	mu     sync.Mutex // keeps writes whole
	w      io.Writer
	failed bool
}

// write never fails for the child: a child whose output cannot be written goes on.
func (c *console) write(text []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.failed {
		return
	}
	if _, err := c.w.Write(text); err != nil {
		c.failed = true
		c.log.Error("the output of the children cannot be written any more", slog.Any("error", err))
	}
}
