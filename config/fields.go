package config

import (
	"fmt"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// A reader checks the value of a key and stores it.
type reader func(key string, n *node)

// fields are the keys that a map may have, each with its reader.
type fields map[string]reader

func (f fields) keys() []string { return slices.Sorted(maps.Keys(f)) }

// closed reads a map that may have no other keys than these. It reports
// whether the value was a map at all.
func (c *checker) closed(n *node, what string, known fields) bool {
	if !c.isMap(n, what) {
		return false
	}
	for _, e := range n.entries {
		if read, ok := known[e.key]; ok {
			read(e.key, e.value)
			continue
		}
		c.problemf(e.pos, "unknown key %q in %s: the nearest is %q (all: %s)",
			e.key, what, nearest(e.key, known.keys()), strings.Join(known.keys(), ", "))
	}
	return true
}

// open reads the known keys of a map, and returns all keys but the known ones
// to be handed on, with those that are shared: read here and handed on too.
// It notes what looks like a known key with a typing error.
func (c *checker) open(n *node, what string, known, shared fields) Settings {
	if !c.isMap(n, what) {
		return nil
	}
	var rest []entry
	for _, e := range n.entries {
		if read, ok := known[e.key]; ok {
			read(e.key, e.value)
			continue
		}
		rest = append(rest, e)
		if read, ok := shared[e.key]; ok {
			read(e.key, e.value)
		} else if near := nearest(e.key, known.keys()); likely(e.key, near) {
			c.notef(e.pos, "%q in %s is kept as a setting of the model: is %q meant?", e.key, what, near)
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
func optional(read reader) reader {
	return func(key string, n *node) {
		if n.kind != kindNull {
			read(key, n)
		}
	}
}

// keep stores a node to be read later, nil for null.
func keep(at **node) reader {
	return optional(func(_ string, n *node) { *at = n })
}

func (c *checker) count(at *int) reader {
	return func(key string, n *node) {
		if v, ok := n.scalar().value.(int64); ok && v >= 1 && v <= math.MaxInt32 {
			*at = int(v)
			return
		}
		c.problemf(n.pos, "%s must be a whole number from 1 to %d, not %s", key, math.MaxInt32, describe(n))
	}
}

func (c *checker) window(at *int) reader {
	return func(key string, n *node) {
		if v, ok := n.scalar().value.(int64); ok && (v == Unbounded || v >= 1 && v <= math.MaxInt32) {
			*at = int(v)
			return
		}
		c.problemf(n.pos, "%s must be a whole number from 1 to %d, or -1 to leave it to the byte window, not %s",
			key, math.MaxInt32, describe(n))
	}
}

func (c *checker) flag(at *bool) reader {
	return func(key string, n *node) {
		if v, ok := n.scalar().value.(bool); ok {
			*at = v
			return
		}
		c.problemf(n.pos, "%s must be true or false, not %s", key, describe(n))
	}
}

func (c *checker) text(at *string) reader {
	return func(key string, n *node) {
		v, ok := n.value.(string)
		if ok && v != "" && !strings.ContainsRune(v, 0) {
			*at = v
			return
		}
		c.problemf(n.pos, "%s must be text, not %s", key, describe(n))
	}
}

// word reads one of a few words.
func word[T ~string](c *checker, at *T, words ...T) reader {
	return func(key string, n *node) {
		if v, ok := n.value.(string); ok && slices.Contains(words, T(v)) {
			*at = T(v)
			return
		}
		names := make([]string, len(words))
		for i, w := range words {
			names[i] = string(w)
		}
		c.problemf(n.pos, "%s must be one of %s, not %s", key, strings.Join(names, ", "), describe(n))
	}
}

func (c *checker) duration(at *time.Duration) reader {
	return func(key string, n *node) {
		if v, ok := n.value.(string); ok {
			if d, err := time.ParseDuration(v); err == nil && d > 0 {
				*at = d
				return
			}
		}
		c.problemf(n.pos, `%s must be a positive duration such as "30s" or "500ms", not %s`, key, describe(n))
	}
}

func (c *checker) size(at *int64) reader {
	return func(key string, n *node) {
		switch v := n.value.(type) {
		case int64:
			if v >= 1 {
				*at = v
				return
			}
		case string:
			if bytes, ok := parseSize(v); ok {
				*at = bytes
				return
			}
		}
		c.problemf(n.pos, `%s must be a positive size in bytes, or text such as "64MiB", not %s`, key, describe(n))
	}
}

var sizeUnits = map[string]int64{
	"": 1, "B": 1,
	"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
	"KB": 1e3, "kB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
}

// parseSize reads a whole number with a unit, such as "64MiB" or "64 MiB".
func parseSize(s string) (int64, bool) {
	digits := strings.TrimRight(s, "BKMGTik")
	unit, known := sizeUnits[s[len(digits):]]
	n, err := strconv.ParseUint(strings.TrimSuffix(digits, " "), 10, 63)
	if err != nil || !known || n == 0 || int64(n) > math.MaxInt64/unit {
		return 0, false
	}
	return int64(n) * unit, true
}

func (c *checker) commandLine(at *[]string) reader {
	return func(key string, n *node) {
		if n.kind != kindList || len(n.items) == 0 {
			c.problemf(n.pos, `%s must be a list of a program and its arguments, such as ["python3", "talker.py"], not %s`, key, describe(n))
			return
		}
		for i, item := range n.items {
			v, ok := item.value.(string)
			if !ok || strings.ContainsRune(v, 0) || i == 0 && v == "" {
				c.problemf(item.pos, "an element of %s must be text, not %s: quote it", key, describe(item))
				continue
			}
			*at = append(*at, v)
		}
	}
}

func (c *checker) environment(at *map[string]string) reader {
	return func(key string, n *node) {
		if !c.isMap(n, key) {
			return
		}
		env := make(map[string]string, len(n.entries))
		for _, e := range n.entries {
			v, ok := e.value.value.(string)
			switch {
			case e.key == "" || strings.ContainsAny(e.key, "=\x00"):
				c.problemf(e.pos, "%q cannot be the name of an environment variable", e.key)
			case !ok || strings.ContainsRune(v, 0):
				c.problemf(e.value.pos, "the variable %s must be text, not %s: quote it", e.key, describe(e.value))
			default:
				env[e.key] = v
			}
		}
		*at = env
	}
}

// at notes where a value stands.
func at(pos *Position, read reader) reader {
	return func(key string, n *node) {
		*pos = n.pos
		read(key, n)
	}
}

// users reads a list of numbers of users.
func (c *checker) users(at *[]uint32) reader {
	return func(key string, n *node) {
		if n.kind != kindList {
			c.problemf(n.pos, "%s must be a list of the numbers of users, such as [1000], not %s", key, describe(n))
			return
		}
		for _, item := range n.items {
			v, ok := item.scalar().value.(int64)
			if !ok || v < 0 || v >= math.MaxUint32 { // the largest number stands for no user
				c.problemf(item.pos, "an element of %s must be the number of a user (see `id -u`), not %s", key, describe(item))
				continue
			}
			*at = append(*at, uint32(v))
		}
	}
}

// endpoint reads where to serve HTTP.
func (c *checker) endpoint(at *string) reader {
	return func(key string, n *node) {
		v, ok := n.value.(string)
		if !ok || v == "" || strings.ContainsRune(v, 0) {
			c.problemf(n.pos, `%s must be the path of a socket, such as ./http.sock, or a loopback address, such as "127.0.0.1:9464", not %s`, key, describe(n))
			return
		}
		if err := CheckHTTP(v); err != nil {
			c.problemf(n.pos, "%s: %v", key, err)
			return
		}
		*at = v
	}
}

// CheckHTTP checks where a host is to serve HTTP: the path of a socket, which
// has a slash, or host:port of a loopback address.
func CheckHTTP(where string) error {
	if strings.Contains(where, "/") {
		return nil
	}
	host, port, err := net.SplitHostPort(where)
	if err != nil {
		return fmt.Errorf("%q is neither the path of a socket, which has a slash, nor an address such as 127.0.0.1:9464", shorten(where))
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return fmt.Errorf("%q has no port from 0 to 65535", shorten(where))
	}
	if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.IsLoopback()) {
		return fmt.Errorf("%q is not a loopback address: what is served there has no protection, so use 127.0.0.1, [::1] or localhost, or the path of a socket, and put a server of your own before it", shorten(where))
	}
	return nil
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
