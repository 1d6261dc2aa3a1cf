package msgspec

import (
	"errors"
	"testing"
)

func TestPath(t *testing.T) {
	cause := errors.New("cause")
	for want, err := range map[string]error{
		"":                               at(nil, nil),
		"a[1].b":                         atKey(atIndex(atKey(cause, "b"), 1), "a"),
		"[0]":                            atIndex(cause, 0),
		`["a b"].c`:                      atKey(atKey(cause, "c"), "a b"),
		`[""]`:                           atKey(cause, ""),
		"[-3][true]":                     atKey(atKey(cause, true), int64(-3)),
		"[<nil>]":                        atKey(cause, nil),
		"[a key of type []interface {}]": atKey(cause, []any{1}),
	} {
		var l *located
		if !errors.As(err, &l) {
			if want != "" {
				t.Errorf("%s: no path in %v", want, err)
			}
			continue
		}
		if got := l.path(); got != want || !errors.Is(err, cause) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
