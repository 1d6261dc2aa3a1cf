package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// made finds a generated part of docs/protocol.md: the text between two comments, of which the
// first names the part.
var made = regexp.MustCompile(`(?s)(<!-- made by go generate ./internal/wire: ([^\n]*) -->\n).*?(<!-- end of the generated part -->)`)

// kinds matches the name of a part that lists messages.
var kinds = regexp.MustCompile(`^kinds? (\d+)(?: to (\d+))?$`)

// page returns docs/protocol.md with its generated parts replaced. It is an error if a message is in none of them.
func (t *table) page(there []byte) ([]byte, error) {
	var failed error
	left := slices.Clone(t.messages)
	own := map[string]bool{} // messages whose fields have a table
	for _, m := range made.FindAllSubmatch(there, -1) {
		if name, ok := strings.CutPrefix(string(m[2]), "fields of "); ok {
			own[name] = true
		}
	}
	page := made.ReplaceAllFunc(there, func(section []byte) []byte {
		m := made.FindSubmatch(section)
		var l lines
		what := string(m[2])
		if match := kinds.FindStringSubmatch(what); len(match) > 0 {
			first, _ := strconv.Atoi(match[1])
			last, _ := strconv.Atoi(cmp.Or(match[2], match[1]))
			l.add("| kind | message | direction | fields |\n|---|---|---|---|")
			left = slices.DeleteFunc(left, func(m *structure) bool {
				if m.kind < first || m.kind > last {
					return false
				}
				l.add("| %d | `%s` | %s | %s |", m.kind, m.name, m.direction, row(m, own[m.name]))
				return true
			})
		} else if name, ok := strings.CutPrefix(what, "fields of "); ok {
			l.add("| type | field |\n|---|---|")
			for _, f := range t.named(name).fields {
				kind, note := words(f)
				name := cmp.Or(f.name, "reserved")
				l.add("| %s | %s |", strings.TrimPrefix(kind, "reserved "), strings.TrimSuffix(name+": "+note, ": "))
			}
		} else if name, ok := strings.CutPrefix(what, "part "); ok {
			l.add("*%s*: %s.", name, row(t.named(name), false))
		} else {
			failed = fmt.Errorf("%q is not made: want kind N, kinds N to N, fields of MESSAGE, or part NAME", what)
		}
		return slices.Concat(m[1], []byte(l.String()), m[3])
	})
	if len(left) > 0 {
		failed = fmt.Errorf("no section has kind %d, %s: add it to one with <!-- made by go generate ./internal/wire: kinds N to N -->", left[0].kind, left[0].name)
	}
	return page, failed
}

// named returns the struct of that name, or one without fields.
func (t *table) named(name string) *structure {
	for _, s := range slices.Concat(t.messages, t.parts) {
		if s.name == name {
			return s
		}
	}
	return &structure{}
}

// row returns the fields of a struct as text, and its note.
func row(s *structure, own bool) string {
	var all []string
	for _, f := range s.fields {
		kind, note := words(f)
		switch {
		case f.form == zeros, f.form == attrs, f.form == part:
			all = append(all, kind)
		case note != "":
			all = append(all, fmt.Sprintf("%s %s (%s)", f.name, kind, note))
		default:
			all = append(all, f.name+" "+kind)
		}
	}
	text := strings.Join(all, ", ")
	switch {
	case own:
		text = "see below"
	case len(all) == 0:
		text = "no field"
	}
	if s.note != "" {
		text += "; " + s.note
	}
	return text
}

// words returns the type of a field as docs/protocol.md names it, and the note of the field.
func words(f field) (kind, note string) {
	note = f.doc
	switch f.form {
	case zeros:
		if code := typeOf(field{form: number, size: f.size}); code != "" {
			return "reserved " + code, ""
		}
		return fmt.Sprintf("%d reserved u8", f.size), ""
	case boolean:
		note = "0 or 1: " + note
	case str:
		if f.bound != "MaxName" {
			note = strings.TrimPrefix(fmt.Sprintf("%s; at most %d bytes", note, f.most), "; ")
		}
	case numbers:
		return "u16, that many u32", note
	case list:
		return "u16, that many *" + f.of.name + "*", note
	case part:
		return "*" + f.of.name + "*", note
	case fixed:
		return fmt.Sprintf("%d bytes", f.size), note
	default:
	}
	return typeOf(f), note
}

// typeOf returns the type as docs/protocol.md names it, or "" for a number of another size.
func typeOf(f field) string {
	switch f.form {
	case text:
		return "str"
	case inline:
		return "bytes"
	case number, enum, boolean, magic:
		return map[int]string{1: "u8", 2: "u16", 4: "u32", 8: "u64"}[f.size]
	default:
		return string(f.form)
	}
}
