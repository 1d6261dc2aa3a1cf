package main

import (
	"bytes"
	"encoding/json"
)

// The table as JSON. docs/protocol.md defines the types of fields.
type (
	jsonTable struct {
		Version  int          `json:"version"`
		Messages []jsonStruct `json:"messages"`
		Parts    []jsonStruct `json:"parts"`
	}

	jsonStruct struct {
		Name        string      `json:"name"`
		Kind        int         `json:"kind,omitempty"`
		Direction   string      `json:"direction,omitempty"`
		Descriptors int         `json:"descriptors,omitempty"`
		Note        string      `json:"note,omitempty"`
		Fields      []jsonField `json:"fields"`
	}

	jsonField struct {
		Name  string `json:"name,omitempty"` // reserved bytes have none
		Type  string `json:"type"`
		Bytes int    `json:"bytes,omitempty"` // of fixed and zeros
		Of    string `json:"of,omitempty"`    // of list and part
		Least *int   `json:"least,omitempty"`
		Most  *int   `json:"most,omitempty"`
		Note  string `json:"note,omitempty"`
	}
)

// json generates docs/protocol.json.
func (t *table) json([]byte) ([]byte, error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	err := enc.Encode(jsonTable{t.version, jsonStructs(t.messages), jsonStructs(t.parts)})
	return b.Bytes(), err
}

func jsonStructs(all []*structure) (made []jsonStruct) {
	for _, s := range all {
		j := jsonStruct{s.name, s.kind, s.direction, s.descriptors, s.note, []jsonField{}}
		for _, f := range s.fields {
			j.Fields = append(j.Fields, jsonFieldOf(f))
		}
		made = append(made, j)
	}
	return made
}

func jsonFieldOf(f field) jsonField {
	j := jsonField{Name: f.name, Type: typeOf(f), Note: f.doc}
	switch f.form {
	case zeros, fixed:
		j.Bytes = f.size
	case numbers:
		j.Type, j.Of = "list", "u32"
	case list, part:
		j.Of = f.of.name
	case enum, boolean:
		j.Least, j.Most = &f.least, &f.most
	case text, inline: // text is cut; inline agrees with flags and size
		j.Type, j.Most = string(f.form), &f.most
	case str, data:
		j.Most = &f.most
	default:
	}
	return j
}
