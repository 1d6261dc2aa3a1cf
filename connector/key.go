package connector

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxKeyBytes is the longest key. With what transports add it must fit into the
// name of a file.
const MaxKeyBytes = 200

// An Edge names the stage that puts and the stage that gets.
type Edge struct {
	From, To string
}

func (e Edge) String() string { return e.From + " -> " + e.To }

// Check refuses names of stages that are empty, longer than [MaxKeyBytes], have control
// characters, or are no UTF-8.
func (e Edge) Check() error {
	for _, stage := range []string{e.From, e.To} {
		if stage == "" || len(stage) > MaxKeyBytes || strings.ContainsFunc(stage, control) || !utf8.ValidString(stage) {
			return fmt.Errorf("%w: %q is no name of a stage: it takes 1 to %d printable bytes of UTF-8", ErrKey, clip(stage), MaxKeyBytes)
		}
	}
	return nil
}

func control(r rune) bool { return r < ' ' || r == 0x7f }

// CheckKey refuses keys that could not be part of a name in a file system: empty
// ones, those above [MaxKeyBytes], those with a slash, with "..", or with a control
// character, and those that are no UTF-8, which other languages have no text for.
func CheckKey(key string) error {
	switch {
	case key == "":
		return fmt.Errorf("%w: it is empty", ErrKey)
	case len(key) > MaxKeyBytes:
		return fmt.Errorf("%w: %d bytes of at most %d", ErrKey, len(key), MaxKeyBytes)
	case strings.Contains(key, "/"):
		return fmt.Errorf("%w: %q contains a slash", ErrKey, clip(key))
	case strings.Contains(key, ".."):
		return fmt.Errorf(`%w: %q contains ".."`, ErrKey, clip(key))
	case strings.ContainsFunc(key, control):
		return fmt.Errorf("%w: %q contains a control character", ErrKey, clip(key))
	case !utf8.ValidString(key):
		return fmt.Errorf("%w: %q is not UTF-8", ErrKey, clip(key))
	}
	return nil
}
