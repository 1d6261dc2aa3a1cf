package connector

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Kind is the kind of value that an option takes.
type Kind int

// The kinds of options. A duration is a number of seconds, whole or not, as in
// vLLM-Omni, or text such as "30s"; in Go also a [time.Duration].
const (
	Flag Kind = iota
	Text
	Integer
	Duration
)

// An Option is a setting that a type defines.
type Option struct {
	Key  string
	Kind Kind
	// Default is the value of a setting that the configuration leaves out: a bool, a string, an
	// int64 or a time.Duration.
	Default any
	// Min and Max bound an integer, and Min a duration, in nanoseconds; a Max of 0 is no bound.
	// Choices lists the values that a text may have; no Choices allow any text.
	Min, Max int64
	Choices  []string
	// Doc describes the option in one sentence for its users.
	Doc string
	// Removed, if it is not empty, says what to do instead of setting the option. The type had this
	// option once, and now refuses every value of it; no other field but Key counts.
	Removed string
}

// want describes the values that the option takes.
func (o Option) want() string {
	switch o.Kind {
	case Flag:
		return "true or false"
	case Text:
		if len(o.Choices) > 0 {
			return "one of " + strings.Join(o.Choices, ", ")
		}
		return "text"
	case Integer:
		if o.Max == 0 {
			return fmt.Sprintf("a whole number of at least %d", o.Min)
		}
		return fmt.Sprintf("a whole number from %d to %d", o.Min, o.Max)
	case Duration:
		if o.Min > 0 {
			return `a number of seconds above 0, or text such as "30s"`
		}
	}
	return `a number of seconds of at least 0, or text such as "30s"`
}

// Read returns a setting's value as the type of the option's default.
func (o Option) Read(value any) (any, error) {
	if o.Removed != "" {
		return nil, fmt.Errorf("%w: %s is gone: %s", ErrSettings, o.Key, o.Removed)
	}
	var v any
	ok := false
	switch o.Kind {
	case Flag:
		v, ok = value.(bool)
	case Text:
		v, ok = o.text(value)
	case Integer:
		v, ok = o.integer(value)
	case Duration:
		v, ok = o.duration(value)
	}
	if ok {
		return v, nil
	}
	if text, ok := value.(string); ok {
		value = strconv.Quote(text) // otherwise "2" would look like a number
	}
	return nil, fmt.Errorf("%w: %s must be %s, not %v", ErrSettings, o.Key, o.want(), value)
}

func (o Option) text(value any) (string, bool) {
	s, ok := value.(string)
	return s, ok && (len(o.Choices) == 0 || slices.Contains(o.Choices, s))
}

func (o Option) integer(value any) (int64, bool) {
	n, ok := wholeNumber(value)
	return n, ok && n >= o.Min && (o.Max == 0 || n <= o.Max)
}

// wholeNumber converts a whole number of any numeric type, as a configuration or the control plane
// delivers it.
func wholeNumber(value any) (int64, bool) {
	switch v := value.(type) {
	case int:
		return int64(v), true
	case int8:
		return int64(v), true
	case int16:
		return int64(v), true
	case int32:
		return int64(v), true
	case int64:
		return v, true
	case uint:
		return int64(v), uint64(v) <= math.MaxInt64 //nolint:gosec // checked beside it
	case uint8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case uint64:
		return int64(v), v <= math.MaxInt64 //nolint:gosec // checked beside it
	case float64: // JSON
		return int64(v), v == math.Trunc(v) && math.Abs(v) < 1<<53
	}
	return 0, false
}

func (o Option) duration(value any) (time.Duration, bool) {
	d, ok := duration(value)
	return d, ok && int64(d) >= o.Min
}

func duration(value any) (time.Duration, bool) {
	if d, ok := value.(time.Duration); ok {
		return d, d >= 0
	}
	if s, ok := value.(string); ok {
		d, err := time.ParseDuration(s)
		return d, err == nil && d >= 0
	}
	seconds, ok := value.(float64)
	if n, isWhole := wholeNumber(value); isWhole {
		seconds, ok = float64(n), true
	}
	const most = math.MaxInt64 / float64(time.Second)
	return time.Duration(seconds * float64(time.Second)), ok && seconds >= 0 && seconds < most
}

// Settings are the values of all options of a type.
type Settings struct {
	values map[string]any
}

// Settings reads the settings that a configuration has under extra. Keys that the type does not
// define are left to the stages; values of a wrong type are an [ErrSettings] that names all of
// them.
func (t Type) Settings(extra map[string]any) (Settings, error) {
	s := Settings{values: make(map[string]any, len(t.Options))}
	var errs []error
	for _, o := range t.Options {
		s.values[o.Key] = o.Default
		if value := extra[o.Key]; value != nil {
			read, err := o.Read(value)
			errs = append(errs, err)
			s.values[o.Key] = read
		}
	}
	return s, errors.Join(errs...)
}

// Flag returns the value of an option of that kind.
func (s Settings) Flag(key string) bool { return setting[bool](s, key) }

// Text returns the value of an option of that kind.
func (s Settings) Text(key string) string { return setting[string](s, key) }

// Int returns the value of an option of that kind.
func (s Settings) Int(key string) int64 { return setting[int64](s, key) }

// Duration returns the value of an option of that kind.
func (s Settings) Duration(key string) time.Duration { return setting[time.Duration](s, key) }

func setting[T any](s Settings, key string) T {
	v, ok := s.values[key].(T)
	if !ok {
		panic(fmt.Sprintf("connector: no option %q of type %T among %v", key, v, slices.Sorted(maps.Keys(s.values))))
	}
	return v
}
