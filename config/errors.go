package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// ErrNoTransport is wrapped by the error of [Pipeline.Runnable] when an edge
// uses a connector that this build has no transport for.
var ErrNoTransport = errors.New("config: no transport in this build")

// maxProblems bounds the report on one file. A file with more problems is
// wrong in a way that the first hundred explain.
const maxProblems = 100

// A Position is a place in a file. Lines and columns count from 1; a column
// counts characters.
type Position struct {
	// File is empty for the file that was named, and the name of another one
	// for what that took from there with base_config.
	File   string `json:"file,omitempty"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
}

// start is where a file begins.
var start = Position{Line: 1, Column: 1}

func (p Position) compare(q Position) int {
	return cmp.Or(cmp.Compare(p.File, q.File), cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
}

// line names the line of a position in a message about another.
func (p Position) line(here Position) string {
	switch p.File {
	case here.File:
		return fmt.Sprintf("line %d", p.Line)
	case "":
		return fmt.Sprintf("line %d of the file on top", p.Line)
	}
	return fmt.Sprintf("line %d of %s", p.Line, p.File)
}

// A Problem is one reason why a file was refused.
type Problem struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Msg    string `json:"message"`
}

// Error returns file:line:column: message, the form that editors can follow.
func (p *Problem) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Column, p.Msg)
}

// Problems is everything found wrong with a file, sorted by position.
type Problems []*Problem

// Error returns one problem a line.
func (p Problems) Error() string {
	lines := make([]string, len(p))
	for i, problem := range p {
		lines[i] = problem.Error()
	}
	return strings.Join(lines, "\n")
}

// Unwrap returns the problems one by one, for errors.As.
func (p Problems) Unwrap() []error {
	errs := make([]error, len(p))
	for i, problem := range p {
		errs[i] = problem
	}
	return errs
}

// A Note says something about a valid file that its author should know.
type Note struct {
	File   string `json:"file"`
	Line   int    `json:"line"`
	Column int    `json:"column"`
	Msg    string `json:"message"`
}

// String returns file:line:column: note: message.
func (n Note) String() string {
	return fmt.Sprintf("%s:%d:%d: note: %s", n.File, n.Line, n.Column, n.Msg)
}

// A checker collects what is found while one file is read.
type checker struct {
	file     string
	origin   string // what positions carry: empty for the file that was named
	values   int    // in the trees of this file and those that it stands on
	problems Problems
	notes    []Note
	refused  map[Position]bool // values about which one problem is enough
}

func (c *checker) problemf(at Position, format string, args ...any) {
	if c.refused[at] {
		return
	}
	c.problems = append(c.problems, &Problem{
		File: cmp.Or(at.File, c.file), Line: at.Line, Column: at.Column, Msg: fmt.Sprintf(format, args...),
	})
}

func (c *checker) notef(at Position, format string, args ...any) {
	c.notes = append(c.notes, Note{
		File: cmp.Or(at.File, c.file), Line: at.Line, Column: at.Column, Msg: fmt.Sprintf(format, args...),
	})
}

// refuse reports a value that cannot be used, and makes it a null about which
// nothing else is reported.
func (c *checker) refuse(n *node, format string, args ...any) {
	c.problemf(n.pos, format, args...)
	if c.refused == nil {
		c.refused = make(map[Position]bool)
	}
	c.refused[n.pos] = true
	n.kind, n.value = kindNull, nil
}

// position is where a problem or a note stands; the named file comes first.
func (c *checker) position(file string, line, column int) Position {
	if file == c.file {
		file = ""
	}
	return Position{File: file, Line: line, Column: column}
}

// err returns the problems sorted, without repeats (the target of a YAML
// alias is read once for each use) and bounded, or nil if there are none.
func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(c.problems, func(a, b *Problem) int {
		return c.position(a.File, a.Line, a.Column).compare(c.position(b.File, b.Line, b.Column))
	})
	seen := make(map[Problem]bool, len(c.problems))
	unique := slices.DeleteFunc(c.problems, func(p *Problem) bool {
		repeated := seen[*p]
		seen[*p] = true
		return repeated
	})
	if more := len(unique) - maxProblems; more > 0 {
		last := *unique[maxProblems]
		last.Msg = fmt.Sprintf("%d more problems from here on: correct those above first", more)
		unique = append(unique[:maxProblems:maxProblems], &last)
	}
	return unique
}

// sortedNotes returns the notes by position, without repeats.
func (c *checker) sortedNotes() []Note {
	slices.SortStableFunc(c.notes, func(a, b Note) int {
		return c.position(a.File, a.Line, a.Column).compare(c.position(b.File, b.Line, b.Column))
	})
	return slices.Compact(c.notes)
}
