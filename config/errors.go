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
	Line   int `json:"line"`
	Column int `json:"column"`
}

func (p Position) compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Line, q.Line), cmp.Compare(p.Column, q.Column))
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
	problems Problems
	notes    []Note
}

func (c *checker) problemf(at Position, format string, args ...any) {
	c.problems = append(c.problems, &Problem{
		File: c.file, Line: at.Line, Column: at.Column, Msg: fmt.Sprintf(format, args...),
	})
}

func (c *checker) notef(at Position, format string, args ...any) {
	c.notes = append(c.notes, Note{
		File: c.file, Line: at.Line, Column: at.Column, Msg: fmt.Sprintf(format, args...),
	})
}

// err returns the problems sorted, without repeats (the target of a YAML
// alias is read once for each use) and bounded, or nil if there are none.
func (c *checker) err() error {
	if len(c.problems) == 0 {
		return nil
	}
	slices.SortStableFunc(c.problems, func(a, b *Problem) int {
		return Position{a.Line, a.Column}.compare(Position{b.Line, b.Column})
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
		return Position{a.Line, a.Column}.compare(Position{b.Line, b.Column})
	})
	return slices.Compact(c.notes)
}
