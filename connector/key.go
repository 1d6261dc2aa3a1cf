package connector

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key. With the affixes of its lock it fits into a file name of 255
// bytes; vLLM-Omni has the same limit.
const MaxKeyBytes = 237

// maxStageBytes is the longest name of a stage; pipelines have the same limit.
const maxStageBytes = 200

// An Edge names the stage that puts and the stage that gets.
type Edge struct {
	From, To string
}

func (e Edge) String() string { return e.From + " -> " + e.To }

// Check refuses names of stages that are empty, longer than 200 bytes, contain control characters,
// or are not UTF-8.
func (e Edge) Check() error {
	for _, stage := range []string{e.From, e.To} {
		if stage == "" || len(stage) > maxStageBytes || strings.ContainsFunc(stage, isControl) || !utf8.ValidString(stage) {
			return fmt.Errorf("%w: %q is no name of a stage: it takes 1 to %d printable bytes of UTF-8", ErrKey, clip(stage), maxStageBytes)
		}
	}
	return nil
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

// CheckKey refuses keys that cannot be a file name: empty ones, those above [MaxKeyBytes], "." and
// "..", and those with a slash. It also refuses control characters, which would reach logs and
// terminals, and text that is not UTF-8, which other languages cannot represent.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKey)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes of at most %d", ErrKey, len(key), MaxKeyBytes)
	case strings.Contains(key, "/"):
		return fmt.Errorf("%w: %q contains a slash", ErrKey, clip(key))
	case key == ".", key == "..":
		return fmt.Errorf("%w: %q is a directory", ErrKey, key)
	case strings.ContainsFunc(key, isControl):
		return fmt.Errorf("%w: %q contains a control character", ErrKey, clip(key))
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not UTF-8", ErrKey, clip(key))
	}
	return nil
}
