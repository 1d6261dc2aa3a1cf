package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
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
