package wire_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// table has the parts of docs/protocol.json that random messages need.
type table struct {
	Messages []structure
	Parts    []structure
}

type structure struct {
	Name   string
	Kind   wire.Kind
	Fields []struct {
		Name        string
		Type        string
		Of          string
		Least, Most uint64
	}
}

// readTable reads it once.
var readTable = sync.OnceValue(func() map[string]structure {
	var read table
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "protocol.json"))
	if err == nil {
		err = json.Unmarshal(text, &read)
	}
	if err != nil {
		panic(err)
	}
	all := map[string]structure{}
	for _, s := range append(read.Messages, read.Parts...) {
		all[s.Name] = s
	}
	return all
})

// newMessage returns a message of the kind.
func newMessage(kind wire.Kind) wire.Message {
	for _, s := range samples() {
		if s.message.Kind() == kind {
			return reflect.New(reflect.TypeOf(s.message).Elem()).Interface().(wire.Message)
		}
	}
	panic("no sample is a " + kind.String())
}

// randomMessage draws a message of the kind whose fields are within their bounds.
func randomMessage(t *rapid.T, kind wire.Kind) wire.Message {
	m := newMessage(kind)
	randomFields(t, kind.String(), reflect.ValueOf(m).Elem())
	return m
}

// examples are random messages, one of each kind; the same for the same seed.
func examples(seed int) []wire.Message {
	draw := rapid.Custom(func(t *rapid.T) (all []wire.Message) {
		for _, kind := range allKinds() {
			all = append(all, randomMessage(t, kind))
		}
		return all
	})
	return draw.Example(seed)
}

// randomFields draws the fields of a struct by the table.
func randomFields(t *rapid.T, name string, v reflect.Value) {
	s, known := readTable()[name]
	if !known {
		t.Fatalf("docs/protocol.json has no %s", name)
	}
	at := 0
	for _, f := range s.Fields {
		if f.Type == "zeros" || f.Name == "magic" {
			continue
		}
		field := v.Field(at)
		at++
		switch p := field.Addr().Interface().(type) {
		case *bool:
			*p = rapid.Bool().Draw(t, f.Name)
		case *int64:
			*p = rapid.Int64().Draw(t, f.Name)
		case *string:
			*p = rapid.StringN(0, 40, int(f.Most)).Draw(t, f.Name)
		case *[]byte:
			*p = rapid.SliceOfN(rapid.Byte(), 0, 600).Draw(t, f.Name)
		case *[]uint32:
			*p = rapid.SliceOfN(rapid.Uint32(), 0, 500).Draw(t, f.Name)
		case *map[string]string:
			*p = rapid.MapOfN(rapid.StringN(1, 16, wire.MaxAttrName), rapid.StringN(0, 20, wire.MaxAttrValue), 0, wire.MaxAttrs).Draw(t, f.Name)
		default:
			randomField(t, f.Name, f.Of, f.Least, f.Most, field)
		}
		if f.Type == "inline" {
			payloadFlags(v)
		}
	}
	if at != v.NumField() {
		t.Fatalf("docs/protocol.json has %d fields of %s, and its struct %d", at, name, v.NumField())
	}
}

// randomField draws a field whose type does not determine its bounds.
func randomField(t *rapid.T, name, of string, least, most uint64, field reflect.Value) {
	switch field.Kind() {
	case reflect.Struct:
		randomFields(t, of, field)
	case reflect.Slice:
		n := rapid.IntRange(0, 20).Draw(t, name)
		field.Set(reflect.MakeSlice(field.Type(), n, n))
		for i := range n {
			randomFields(t, of, field.Index(i))
		}
	case reflect.Array:
		for i := range field.Len() {
			field.Index(i).SetUint(uint64(rapid.Byte().Draw(t, name)))
		}
	default:
		if most == 0 {
			most = 1<<field.Type().Bits() - 1 // which is right for 64 bits too
		}
		field.SetUint(rapid.Uint64Range(least, most).Draw(t, name))
	}
}

// payloadFlags makes flags and size agree with the payload.
func payloadFlags(m reflect.Value) {
	flags, size, payload := m.FieldByName("Flags"), m.FieldByName("Size"), m.FieldByName("Payload")
	if payload.Len() == 0 {
		flags.SetUint(flags.Uint() &^ wire.FlagInline)
		return
	}
	flags.SetUint(flags.Uint() | wire.FlagInline)
	size.SetUint(uint64(payload.Len()))
}

// TestTableHasAllKinds holds docs/protocol.json to the kinds.
func TestTableHasAllKinds(t *testing.T) {
	for _, kind := range allKinds() {
		if s := readTable()[kind.String()]; s.Kind != kind {
			t.Errorf("docs/protocol.json has kind %d for %v, which is %d", s.Kind, kind, uint16(kind))
		}
	}
}
