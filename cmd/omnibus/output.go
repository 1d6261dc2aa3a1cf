package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// A choice is a flag that takes one of a few words.
type choice struct {
	word  string
	words []string
}

// newChoice returns a flag with its words; the first is the default.
func newChoice(words ...string) *choice { return &choice{words[0], words} }

func (c *choice) String() string { return c.word }

func (c *choice) Type() string { return strings.Join(c.words, "|") }

func (c *choice) Set(word string) error {
	if !slices.Contains(c.words, word) {
		return fmt.Errorf("must be one of %s", strings.Join(c.words, ", "))
	}
	c.word = word
	return nil
}

// A span is a flag that takes a time, and says how one is written.
type span time.Duration

func (s *span) String() string {
	if *s == 0 {
		return "" // the flag says what that means
	}
	return time.Duration(*s).String()
}

func (s *span) Type() string { return "duration" }

func (s *span) Set(text string) error {
	d, err := time.ParseDuration(text)
	switch {
	case err != nil:
		return errors.New("must be a number with a unit, such as 500ms, 30s or 1m30s")
	case d < 0:
		return errors.New("must not be negative")
	}
	*s = span(d)
	return nil
}

const (
	outputText = "text"
	outputJSON = "json"
)

func newOutput() *choice { return newChoice(outputText, outputJSON) }

// writeJSON writes a value for programs to read.
func writeJSON(out io.Writer, value any) error {
	enc := json.NewEncoder(out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	return enc.Encode(value)
}
