package config

import (
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

func (c *checker) count(at *int, most int64) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.scalar().value.(int64); ok && v >= 1 && v <= most {
			*at = int(v)
			return
		}
		c.problemf(n.pos, "%s must be a whole number from 1 to %d, not %s", key, most, describe(n))
	}, orVariable(integer(1, most))}
}

func (c *checker) window(at *int) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.scalar().value.(int64); ok && (v == Unbounded || v >= 1 && v <= bus.MaxWindow) {
			*at = int(v)
			return
		}
		c.problemf(n.pos, "%s must be a whole number from 1 to %d, or -1 to leave it to the byte window, not %s",
			key, bus.MaxWindow, describe(n))
	}, takesWindow}
}

func (c *checker) flag(at *bool) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.scalar().value.(bool); ok {
			*at = v
			return
		}
		c.problemf(n.pos, "%s must be true or false, not %s", key, describe(n))
	}, takesFlag}
}

func (c *checker) text(at *string) reader {
	return reader{func(key string, n *node) {
		v, ok := n.value.(string)
		if ok && v != "" && !strings.ContainsRune(v, 0) {
			*at = v
			return
		}
		c.problemf(n.pos, "%s must be text, not %s", key, describe(n))
	}, takesText}
}

// word reads one of a few words.
func word[T ~string](c *checker, at *T, words ...T) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.value.(string); ok && slices.Contains(words, T(v)) {
			*at = T(v)
			return
		}
		names := make([]string, len(words))
		for i, w := range words {
			names[i] = string(w)
		}
		c.problemf(n.pos, "%s must be one of %s, not %s", key, strings.Join(names, ", "), describe(n))
	}, oneOf(words...)}
}

func (c *checker) duration(at *time.Duration) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.value.(string); ok {
			if d, err := time.ParseDuration(v); err == nil && d > 0 {
				*at = d
				return
			}
		}
		c.problemf(n.pos, `%s must be a positive duration such as "30s" or "500ms", not %s`, key, describe(n))
	}, takesDuration}
}

func (c *checker) size(at *int64) reader {
	return reader{func(key string, n *node) {
		if v, ok := sizeOf(n); ok && v > 0 {
			*at = v
			return
		}
		c.problemf(n.pos, `%s must be a positive size in bytes, or text such as "64MiB", not %s`, key, describe(n))
	}, takesSize}
}

// sizeOrNone is size where 0 is one, too: a bound from below that leaves nothing out.
func (c *checker) sizeOrNone(at *int64) reader {
	return reader{func(key string, n *node) {
		if v, ok := sizeOf(n); ok {
			*at = v
			return
		}
		c.problemf(n.pos, `%s must be a size in bytes, or text such as "64MiB", not %s`, key, describe(n))
	}, takesSizeOrNone}
}

func sizeOf(n *node) (int64, bool) {
	switch v := n.value.(type) {
	case int64:
		return v, v >= 0
	case string:
		return parseSize(v)
	}
	return 0, false
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
	if err != nil || !known || int64(n) > math.MaxInt64/unit {
		return 0, false
	}
	return int64(n) * unit, true
}

func (c *checker) commandLine(at *[]string) reader {
	return reader{func(key string, n *node) {
		if n.kind != kindList || len(n.items) == 0 {
			what := describe(n)
			if n.kind == kindList {
				what = "an empty list"
			}
			c.problemf(n.pos, `%s must be a list of a program and its arguments, such as ["python3", "talker.py"], not %s`, key, what)
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
	}, takesCommandLine}
}

func (c *checker) environment(at *map[string]string) reader {
	return reader{func(key string, n *node) {
		if !c.isMap(n, key) {
			return
		}
		env := make(map[string]string, len(n.entries))
		for _, e := range n.entries {
			v, ok := e.value.value.(string)
			switch {
			case e.key == "" || strings.ContainsAny(e.key, "=\x00"):
				c.problemf(e.pos, "%q cannot be the name of an environment variable", shorten(e.key))
			case !ok || strings.ContainsRune(v, 0):
				c.problemf(e.value.pos, "the variable %s must be text, not %s: quote it", shorten(e.key), describe(e.value))
			default:
				env[e.key] = v
			}
		}
		*at = env
	}, takesEnvironment}
}

// users reads a list of numbers of users.
func (c *checker) users(at *[]uint32) reader {
	return reader{func(key string, n *node) {
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
	}, takesUsers}
}

// endpoint reads where to serve HTTP.
func (c *checker) endpoint(at *string) reader {
	return reader{func(key string, n *node) {
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
	}, takesText}
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
