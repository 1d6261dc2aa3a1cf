package msgspec

import (
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
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

func TestStructOf(t *testing.T) {
	type inner struct {
		Name  string `msgpack:"name"`
		Inner int
	}
	type Named struct{ X int }
	type outer struct {
		inner
		*Named
		Name    int `msgpack:"name,omitempty"`
		Skipped int `msgpack:"-"`
		private int
	}
	_ = outer{}.private
	s := structOf(reflect.TypeFor[outer]())
	var got []string
	for _, f := range s.fields {
		got = append(got, f.name)
	}
	if diff := cmp.Diff([]string{"name", "Inner", "Named"}, got); diff != "" {
		t.Error(diff)
	}
	if f := s.fields[s.byName["name"]]; !f.omitEmpty || len(f.index) != 1 {
		t.Errorf("the embedded field won: %+v", f)
	}
	if s.array || structOf(reflect.TypeFor[outer]()) != s {
		t.Error("another result for the same type")
	}
}
