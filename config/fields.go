package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// A reader checks the value of a key and stores it.
type reader struct {
	read  func(key string, n *node)
	takes schema // the values that are accepted
}

// about adds the description of a key, which editors show.
func (r reader) about(text string) reader {
	takes := maps.Clone(r.takes)
	if takes == nil {
		takes = schema{}
	}
	takes["description"] = text
	return reader{r.read, takes}
}

// fields are the keys that a map may have, each with its reader.
type fields map[string]reader

func (f fields) keys() []string { return slices.Sorted(maps.Keys(f)) }

// closed reads a map that may have no other keys than these. It reports
// whether the value was a map at all.
func (c *checker) closed(n *node, what string, known fields) bool {
	if !c.isMap(n, what) {
		return false
	}
	keys := known.keys()
	for _, e := range n.entries {
		if field, ok := known[e.key]; ok {
			field.read(e.key, e.value)
			continue
		}
		c.problemf(e.pos, "unknown key %q in %s: the nearest is %q (all: %s)",
			shorten(e.key), what, nearest(e.key, keys), strings.Join(keys, ", "))
	}
	return true
}

// open reads the known keys of a map, and returns all keys but the known ones
// to be handed on, with those that are shared: read here and handed on too.
// It refuses a known key with a typing error, and a setting of the bus, which stands
// under omnibus.
func (c *checker) open(n *node, what string, known, shared fields) Settings {
	if !c.isMap(n, what) {
		return nil
	}
	const ofModel = "one of the model goes under engine_args of its stage"
	var rest []entry
	keys := slices.Sorted(slices.Values(slices.Concat(known.keys(), shared.keys())))
	for _, e := range n.entries {
		if field, ok := known[e.key]; ok {
			field.read(e.key, e.value)
			continue
		}
		rest = append(rest, e)
		if field, ok := shared[e.key]; ok {
			field.read(e.key, e.value)
		} else if place := places()[e.key]; place != "" {
			c.problemf(e.pos, "misplaced key %q in %s: it is a setting of the bus, and belongs under omnibus %s; %s", e.key, what, place, ofModel)
		} else if near := nearest(e.key, keys); likely(e.key, near) {
			c.problemf(e.pos, "unknown key %q in %s: is %q meant? (all: %s; %s)", shorten(e.key), what, near, strings.Join(keys, ", "), ofModel)
		}
	}
	if rest == nil {
		return nil
	}
	return c.settings(rest)
}

func (c *checker) isMap(n *node, what string) bool {
	if n.kind == kindMap {
		return true
	}
	c.problemf(n.pos, "%s must be a map of keys, not %s", what, describe(n))
	return false
}

// optional leaves a field unset where the file says null, which is what a
// missing key is to vLLM-Omni. Under omnibus: a null is a problem.
func optional(r reader) reader {
	return reader{func(key string, n *node) {
		if n.kind != kindNull {
			r.read(key, n)
		}
	}, nullable(r.takes)}
}

// keep stores a node to be read later, nil for null.
func keep(at **node, takes schema) reader {
	return optional(reader{func(_ string, n *node) { *at = n }, takes})
}

// at notes where a value stands.
func at(pos *Position, r reader) reader {
	return reader{func(key string, n *node) {
		*pos = n.pos
		r.read(key, n)
	}, r.takes}
}

// describe says what a value is, in a problem that wants another.
func describe(n *node) string {
	switch n.kind {
	case kindNull:
		return "null"
	case kindList:
		return "a list"
	case kindMap:
		return "a map"
	case kindString:
		text := fmt.Sprintf("the text %q", shorten(n.value.(string)))
		if n.variable {
			text += ", made with variables"
		}
		return text
	case kindBool:
		return fmt.Sprintf("%v", n.value)
	default:
		return fmt.Sprintf("the number %v", n.value)
	}
}

// shorten keeps a message on one line of a reasonable length.
func shorten(s string) string {
	const most = 40
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most]) + "..."
}
