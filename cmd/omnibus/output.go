package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
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

// parseFailure is the library's text for a flag that does not parse.
var parseFailure = regexp.MustCompile(`strconv\.Parse(Bool|Int|Uint): parsing .*: (invalid syntax|value out of range)$`)

// inWords replaces the library's text by the values that a flag takes.
func inWords(err error) error {
	m := parseFailure.FindStringSubmatch(err.Error())
	if m == nil {
		return err
	}
	want := "must be a whole number"
	switch {
	case m[2] == "value out of range":
		want = "is more than this flag can take"
	case m[1] == "Bool":
		want = "must be true or false"
	case m[1] == "Uint":
		want = "must be a whole number, and not negative"
	}
	return errors.New(strings.TrimSuffix(err.Error(), m[0]) + want)
}

// parseObject parses the value of a flag as a JSON object.
func parseObject[M ~map[string]any](flag, text string) (M, error) {
	var m map[string]any
	dec := json.NewDecoder(strings.NewReader(text))
	dec.UseNumber()
	err := dec.Decode(&m)
	var other *json.UnmarshalTypeError
	switch {
	case errors.As(err, &other):
		return nil, &usageError{fmt.Sprintf("--%s is no JSON object: it is a JSON %s", flag, other.Value)}
	case errors.Is(err, io.EOF):
		return nil, &usageError{fmt.Sprintf("--%s is no JSON object: it is empty", flag)}
	case err != nil:
		return nil, &usageError{fmt.Sprintf("--%s is no JSON object: %v", flag, err)}
	}
	if _, err = dec.Token(); !errors.Is(err, io.EOF) {
		return nil, &usageError{fmt.Sprintf("--%s is no JSON object: there is more behind it", flag)}
	}
	if _, err = numbers(m); err != nil {
		return nil, &usageError{fmt.Sprintf("--%s has %v", flag, err)}
	}
	return m, nil
}

// A span is a flag of a duration. Its error shows the form.
type span time.Duration

func (s *span) String() string {
	if *s == 0 {
		return "" // the help of the flag explains it
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
