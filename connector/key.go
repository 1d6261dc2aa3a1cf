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

// Request returns the request that a key belongs to. vLLM-Omni writes keys in these
// forms; any other key is a request's own id:
//
//	{request}_{from}_{chunk}                           chunks
//	{request}_{from}_{chunk}_{from rank}_{to rank}     chunks by rank
//	omni_{from}_to_{to}_kv_cache_{request}             KV caches
//	{key}@{from}_{to}                                  qualified by the edge
func Request(edge Edge, key string) string {
	key = strings.TrimSuffix(key, "@"+edge.From+"_"+edge.To)
	if request, ok := strings.CutPrefix(key, "omni_"+edge.From+"_to_"+edge.To+"_kv_cache_"); ok && request != "" {
		return request
	}
	for _, numbers := range []int{1, 3} {
		if rest, ok := cutNumbers(key, numbers); ok {
			if request, ok := strings.CutSuffix(rest, "_"+edge.From); ok && request != "" {
				return request
			}
		}
	}
	return key
}

// cutNumbers cuts n numbers from the end, each behind an underscore.
func cutNumbers(s string, n int) (string, bool) {
	for range n {
		i := strings.LastIndexByte(s, '_')
		if i < 0 || i == len(s)-1 || strings.ContainsFunc(s[i+1:], notDigit) {
			return "", false
		}
		s = s[:i]
	}
	return s, true
}

func notDigit(r rune) bool { return r < '0' || r > '9' }
