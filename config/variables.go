package config

import (
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxExpandedBytes bounds the texts with variables in them, all together and
// after these have been replaced: a short file can name a long variable often.
const maxExpandedBytes = 1 << 20

// An expander replaces the variables in the texts of a file.
type expander struct {
	*checker
	lookup func(name string) (string, bool)
	// noteUnset has a variable that is not set stay as it is written, with a note.
	noteUnset bool
	done      map[*node]bool // a value has a parent for each alias of it
	bytes     int
	full      bool
}

// node replaces the variables in all texts of a value, but not in keys.
func (x *expander) node(n *node) {
	if n == nil || x.done[n] || x.full {
		return
	}
	x.done[n] = true
	for _, item := range n.items {
		x.node(item)
	}
	for _, e := range n.entries {
		x.node(e.value)
	}
	if text, ok := n.value.(string); ok && strings.Contains(text, "${") {
		x.text(n, text)
	}
}

// text replaces the variables of one text. A backslash before ${ keeps it, and
// one before that backslash is for a backslash before a variable.
func (x *expander) text(n *node, rest string) {
	var out strings.Builder
	for {
		at := strings.Index(rest, "${")
		if at < 0 {
			break
		}
		before := strings.TrimRight(rest[:at], `\`)
		slashes := at - len(before)
		out.WriteString(before)
		out.WriteString(strings.Repeat(`\`, slashes/2))
		if slashes%2 == 1 {
			out.WriteString("${")
			rest = rest[at+2:]
			continue
		}
		value, length, ok := x.variable(n, rest[at:])
		if !ok {
			return
		}
		if x.bytes+out.Len()+len(value) > maxExpandedBytes {
			x.full = true
			x.refuse(n, "more than %d bytes of text once variables are replaced", maxExpandedBytes)
			return
		}
		n.variable = true
		out.WriteString(value)
		rest = rest[at+length:]
	}
	out.WriteString(rest)
	n.value, n.plain = out.String(), false
	x.bytes += out.Len()
}

// expression is what stands for a variable. The form with oc.env is the one
// that the loader of vLLM-Omni knows everywhere, and the only one with a
// default; the short form it knows in the settings of connectors.
var expression = regexp.MustCompile(`^\$\{(?:([A-Za-z_][A-Za-z0-9_]*)|oc\.env:([A-Za-z_][A-Za-z0-9_]*) *(, *(?:'([^'\\]*)'|"([^"\\]*)"|([^'"\\{},]*)))?)\}`)

// variable returns the value of the variable at the start of a text, and the
// length of what stands for it there.
func (x *expander) variable(n *node, text string) (value string, length int, ok bool) {
	m := expression.FindStringSubmatch(text)
	if m == nil {
		end := strings.IndexByte(text, '}') + 1
		if end == 0 {
			end = len(text)
		}
		x.refuse(n, `%q stands for no variable: write ${NAME}, or ${oc.env:NAME,default}, or \${ where the text is to have ${ itself`, shorten(text[:end]))
		return "", 0, false
	}
	name, fallback := m[1]+m[2], m[3] != ""
	if x.lookup != nil {
		value, ok = x.lookup(name)
	}
	switch {
	case ok && (!utf8.ValidString(value) || strings.ContainsRune(value, 0)):
		x.refuse(n, "the value of the variable %s is no text: it has bytes that are not UTF-8, or a NUL", shorten(name))
		return "", 0, false
	case ok:
	case strings.TrimSpace(m[6]) == "null":
		x.refuse(n, "the default of the variable %s is null, which cannot stand in a text: set the variable, or write a text", shorten(name))
		return "", 0, false
	case fallback:
		value = m[4] + m[5] + strings.TrimSpace(m[6])
	case x.lookup == nil:
		x.refuse(n, `the variable %s is not set, because this program reads the file without any: write what it stands for, or \${ where the text is to have ${ itself`, shorten(name))
		return "", 0, false
	case x.noteUnset:
		x.notef(n.pos, "the variable %s is not set here: a run needs it", shorten(name))
		n.unset, value = true, m[0]
	default:
		x.refuse(n, `the variable %s is not set: set it, or write ${oc.env:%s,default}, or \${ where the text is to have ${ itself`, shorten(name), shorten(name))
		return "", 0, false
	}
	return value, len(m[0]), true
}

// scalar returns the number, or the true or false, that a text with variables
// in it spells, for a place that wants one: a variable holds only text. Any
// other value it returns as it is.
func (n *node) scalar() *node {
	if n.kind == kindList {
		list := *n
		list.items = make([]*node, len(n.items))
		for i, item := range n.items {
			list.items[i] = item.scalar()
		}
		return &list
	}
	if !n.variable {
		return n
	}
	read := *n
	text := n.value.(string)
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		read.kind, read.value = kindInt, v
	} else if v, err := strconv.ParseFloat(text, 64); err == nil && number.MatchString(text) {
		read.kind, read.value = kindFloat, v
	} else if text == "true" || text == "false" {
		read.kind, read.value = kindBool, text == "true"
	}
	return &read
}
