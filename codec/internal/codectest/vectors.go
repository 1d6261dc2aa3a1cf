package codectest

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"
)

// Vectors reads a file of values that Python has encoded. Each line is a name,
// a colon and the buffers in hex; a line that begins with "#" is a comment.
func Vectors(t testing.TB, file string) map[string][][]byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	vectors := map[string][][]byte{}
	for line := range strings.Lines(string(content)) {
		name, encoded, ok := strings.Cut(line, ": ")
		if !ok || strings.HasPrefix(line, "#") {
			continue
		}
		for text := range strings.FieldsSeq(encoded) {
			buffer, err := hex.DecodeString(text)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			vectors[name] = append(vectors[name], buffer)
		}
	}
	return vectors
}
