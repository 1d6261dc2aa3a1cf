package messages_test

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/omnibus-runtime/omnibus/internal/golden"
	"github.com/omnibus-runtime/omnibus/messages/omnibuspb"
)

const schemaFile = "testdata/schema.txt"

// A node of an older version may be on the other end of a link, so what the
// schema has said once it says for ever. testdata/schema.txt lists it. A change
// that only adds lines is safe: run with -update and commit the file.
// A line that changes or goes breaks old nodes.
func TestSchemaKeepsItsPromises(t *testing.T) {
	got := describe(omnibuspb.File_messages_omnibus_proto)
	golden.Compare(t, schemaFile, []byte(got))
}

// Whoever speaks another language has the comments of the schema and nothing
// else, so every enum starts at a value that means nothing.
func TestEnumsStartUnspecified(t *testing.T) {
	enums := omnibuspb.File_messages_omnibus_proto.Enums()
	for i := range enums.Len() {
		zero := enums.Get(i).Values().ByNumber(0)
		if zero == nil || !strings.HasSuffix(string(zero.Name()), "_UNSPECIFIED") {
			t.Errorf("enum %s: value 0 is %v, want one that ends in _UNSPECIFIED", enums.Get(i).Name(), zero)
		}
	}
}

// describe lists the schema, one line for each thing that the wire depends on.
func describe(file protoreflect.FileDescriptor) string {
	var b strings.Builder
	fmt.Fprintf(&b, "package %s\n", file.Package())
	for i := range file.Enums().Len() {
		enum := file.Enums().Get(i)
		for j := range enum.Values().Len() {
			value := enum.Values().Get(j)
			fmt.Fprintf(&b, "%s %d %s\n", enum.Name(), value.Number(), value.Name())
		}
	}
	for i := range file.Messages().Len() {
		message := file.Messages().Get(i)
		for j := range message.Fields().Len() {
			field := message.Fields().Get(j)
			fmt.Fprintf(&b, "%s %d %s %s\n", message.Name(), field.Number(), fieldType(field), field.Name())
		}
	}
	return b.String()
}

func fieldType(field protoreflect.FieldDescriptor) string {
	kind := field.Kind().String()
	switch {
	case field.IsMap():
		return fmt.Sprintf("map<%s,%s>", fieldType(field.MapKey()), fieldType(field.MapValue()))
	case field.Message() != nil:
		kind = string(field.Message().Name())
	case field.Enum() != nil:
		kind = string(field.Enum().Name())
	}
	if field.IsList() {
		return "repeated " + kind
	}
	return kind
}
