// Command wiregen generates code and documents from the table of messages, the structs of package
// wire. `go generate ./internal/wire` runs it there. It writes
//
//   - messages_gen.go: the kinds, and the functions that append and read each message;
//   - the module omnibus.wire.messages of the Python client: the same in Python;
//   - the parts of docs/protocol.md between comments that name their kinds;
//   - docs/protocol.json: the table, for clients in other languages.
//
// # The table
//
// A struct with one of these lines after its comment is in the table:
//
//	//wire:message KIND DIRECTION; NOTE
//	//wire:part
//
// A message has a kind, and a direction in the words of docs/protocol.md. The note is optional. A
// note that begins with "one descriptor", "two descriptors" or "three descriptors" gives the number
// of descriptors of the message. A part is a struct that several messages contain, by itself or in
// a list.
//
// The fields are in the order of the wire, and have the names of Go there, in snake case. Their
// comments are those of docs/protocol.md. The Go type determines the encoding of a field:
//
//	uint8 to uint64, int64   little endian
//	bool                     u8, 0 or 1
//	a named uint8            u8, from the least to the highest of the type's constants
//	Code                     u16
//	[n]byte                  n bytes
//	string                   str, of at most MaxName bytes
//	[]byte                   bytes
//	map[string]string        attrs
//	[]uint32, []PART, PART   a u16 count and that many; or one
//
// A tag adds to that, such as `wire:"inline,reserved=3"`:
//
//	most=NAME    the bound of a string or of bytes, a constant of package wire
//	text         the text of an error, which is cut at MaxText bytes
//	inline       the field Payload: at most MaxInline bytes, which agree with the fields Flags and Size
//	0..1         the bounds of a uint8
//	reserved=N   N zero bytes follow the field
//	magic        the u64 Magic precedes the field
//
// A mistake in the table is an error that names the struct and the field.
package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// files has the function that generates each file, by the file's path from the folder of package
// wire. The function gets the present content.
var files = map[string]func(t *table, there []byte) ([]byte, error){
	"messages_gen.go":                                   (*table).goCode,
	"../../docs/protocol.md":                            (*table).page,
	"../../docs/protocol.json":                          (*table).json,
	"../../clients/python/src/omnibus/wire/messages.py": (*table).python,
}

func main() {
	made, err := outputs(".")
	for path, text := range made {
		if err == nil {
			err = os.WriteFile(path, text, 0o644) //nolint:gosec // as readable as the other files of the repository
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wiregen:", err)
		os.Exit(1)
	}
}

// outputs generates the files from the structs in a folder.
func outputs(dir string) (map[string][]byte, error) {
	t, err := readTable(dir)
	if err != nil {
		return nil, err
	}
	made := map[string][]byte{}
	for name, maker := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		there, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		if made[path], err = maker(t, there); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return made, nil
}
