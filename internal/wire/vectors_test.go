package wire_test

import (
	"encoding/hex"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/internal/golden"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// vector is one message in both forms.
type vector struct {
	Name        string         `json:"name"`
	Kind        wire.Kind      `json:"kind"`
	Descriptors int            `json:"descriptors"`
	Hex         string         `json:"hex"`
	Fields      map[string]any `json:"fields"`
}

// malformed is a packet that both sides refuse.
type malformed struct {
	Name string `json:"name"`
	Hex  string `json:"hex"`
}

// TestVectors compares the encoding with the file that tests of clients in other languages use. A
// difference is a change of the protocol: it needs a new version, not -update.
func TestVectors(t *testing.T) {
	var vectors []vector
	for _, s := range samples() {
		b, err := wire.Append(nil, s.message, s.descriptors)
		if err != nil {
			t.Fatalf("%s: Append: %v", s.name, err)
		}
		vectors = append(vectors, vector{
			Name:        s.name,
			Kind:        s.message.Kind(),
			Descriptors: s.descriptors,
			Hex:         hex.EncodeToString(b),
			Fields:      structFields(t, reflect.ValueOf(s.message).Elem()),
		})
	}
	golden.JSON(t, "testdata/vectors.json", vectors)
}

// TestVectorsDecode decodes the bytes of the file and expects its fields.
func TestVectorsDecode(t *testing.T) {
	var vectors []vector
	golden.ReadJSON(t, "testdata/vectors.json", &vectors)
	all := samples()
	if len(all) != len(vectors) {
		t.Fatalf("%d vectors in the file, %d in the test", len(vectors), len(all))
	}
	for i, v := range vectors {
		t.Run(v.Name, func(t *testing.T) {
			packet := fromHex(t, v.Hex)
			h, body, rest, err := wire.Next(packet)
			if err != nil || len(rest) != 0 {
				t.Fatalf("Next: %v, %d bytes left", err, len(rest))
			}
			if h.Kind != v.Kind || h.Descriptors != v.Descriptors {
				t.Errorf("header %+v, want kind %v and %d descriptors", h, v.Kind, v.Descriptors)
			}
			got, err := wire.Parse(h, body)
			if err != nil {
				t.Fatalf("Parse: %v", err)
			}
			if diff := cmp.Diff(all[i].message, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("Parse (-want +got):\n%s", diff)
			}
		})
	}
}

// TestVectorsAreComplete holds the file to every kind of message.
func TestVectorsAreComplete(t *testing.T) {
	seen := map[wire.Kind]bool{}
	names := map[string]bool{}
	for _, s := range samples() {
		seen[s.message.Kind()] = true
		if names[s.name] {
			t.Errorf("two vectors are named %s", s.name)
		}
		names[s.name] = true
	}
	for _, kind := range allKinds() {
		if !seen[kind] {
			t.Errorf("no vector for %v", kind)
		}
	}
}

// TestMalformed: the decoder refuses packets that break the protocol, and the file of them for
// other clients is current.
func TestMalformed(t *testing.T) {
	var vectors []malformed
	for _, s := range malformedSamples(t) {
		vectors = append(vectors, malformed{Name: s.name, Hex: hex.EncodeToString(s.packet)})
		if err := readAll(s.packet); err == nil {
			t.Errorf("%s: accepted", s.name)
		} else if !errors.Is(err, wire.ErrProtocol) {
			t.Errorf("%s: %v is not ErrProtocol", s.name, err)
		}
	}
	golden.JSON(t, "testdata/malformed.json", vectors)
}

// skipped is a packet with messages of unknown kinds that a receiver skips.
type skipped struct {
	Name        string      `json:"name"`
	Descriptors int         `json:"descriptors"`
	Hex         string      `json:"hex"`
	Kinds       []wire.Kind `json:"kinds"` // of the messages that are read
}

// TestSkipped: the decoder skips messages of unknown kinds that allow it, and the file of such
// packets for other clients is current.
func TestSkipped(t *testing.T) {
	all := skippedSamples(t)
	for _, s := range all {
		kinds, descriptors := []wire.Kind{}, 0
		for packet := fromHex(t, s.Hex); len(packet) > 0; {
			h, body, rest, err := wire.Next(packet)
			if err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			descriptors += h.Descriptors
			if packet = rest; h.Skip {
				continue
			}
			if _, err := wire.Parse(h, body); err != nil {
				t.Fatalf("%s: %v", s.Name, err)
			}
			kinds = append(kinds, h.Kind)
		}
		if diff := cmp.Diff(s.Kinds, kinds); diff != "" || descriptors != s.Descriptors {
			t.Errorf("%s: %d descriptors, want %d; kinds (-want +got):\n%s", s.Name, descriptors, s.Descriptors, diff)
		}
	}
	golden.JSON(t, "testdata/skipped.json", all)
}

// readAll reads a packet to its end or to the first error.
func readAll(packet []byte) error {
	for {
		h, body, rest, err := wire.Next(packet)
		if err != nil {
			return err
		}
		if _, err := wire.Parse(h, body); err != nil {
			return err
		}
		if len(rest) == 0 {
			return nil
		}
		packet = rest
	}
}

func fromHex(t *testing.T, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// structFields returns the fields of a message by their names in the protocol.
func structFields(t *testing.T, v reflect.Value) map[string]any {
	t.Helper()
	fields := map[string]any{}
	for i := range v.NumField() {
		fields[protocolName(t, v.Type().Field(i).Name)] = plain(t, v.Field(i))
	}
	return fields
}

// plain returns a field as JSON shows it: bytes as hexadecimal text.
func plain(t *testing.T, v reflect.Value) any {
	t.Helper()
	switch v.Kind() {
	case reflect.Struct:
		return structFields(t, v)
	case reflect.Array: // of bytes
		b := make([]byte, v.Len())
		reflect.Copy(reflect.ValueOf(b), v)
		return hex.EncodeToString(b)
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return hex.EncodeToString(v.Bytes())
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = plain(t, v.Index(i))
		}
		return list
	case reflect.Map:
		if v.IsNil() {
			return map[string]string{}
		}
		return v.Interface()
	case reflect.Uint8, reflect.Uint16:
		return v.Uint() // a Code or a Policy is its number
	default:
		return v.Interface()
	}
}

// protocolName returns the name in docs/protocol.json of a message or a field, from its name in
// Go. Command wiregen generates these names.
func protocolName(t *testing.T, goName string) string {
	t.Helper()
	for name, s := range readTable() {
		if sameName(name, goName) {
			return name
		}
		for _, f := range s.Fields {
			if sameName(f.Name, goName) {
				return f.Name
			}
		}
	}
	t.Fatalf("docs/protocol.json has no name for %s: run go generate ./internal/wire", goName)
	return ""
}

func sameName(inProtocol, inGo string) bool {
	return strings.EqualFold(strings.ReplaceAll(inProtocol, "_", ""), inGo)
}
