package codectest

import (
	"bytes"
	_ "embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

//go:embed reference.py
var reference []byte

// Case is a value for Python to build, encode and decode.
type Case struct {
	// Value describes the value: the name of a kind, and its parts.
	Value []any `json:"value"`
	// Encoded is Go's encoding of the value, each buffer in hex.
	Encoded []string `json:"encoded"`
}

// Answer is Python's answer to a [Case].
type Answer struct {
	// Skipped is the reason why this Python cannot build the value.
	Skipped string `json:"skipped"`
	// Refused is the reason why Python does not encode the value, or empty.
	Refused string `json:"refused"`
	// Encoded is Python's encoding of the value, each buffer in hex.
	Encoded []string `json:"encoded"`
	// Difference is the difference between the value and Python's decoding of Go's
	// bytes, or empty.
	Difference string `json:"difference"`
}

// Ask has Python encode and decode values in the format of codec/omni. It returns an answer
// to each case, and the source of the format in Python: the package vllm_omni in the folder
// $OMNIBUS_VLLM_OMNI, or if that is not set a description of the format.
func Ask(t testing.TB, cases []Case) (answers []Answer, source string) {
	t.Helper()
	python := pythontest.Interpreter(t, "msgspec", "numpy")
	var questions bytes.Buffer
	for _, c := range cases {
		if err := json.NewEncoder(&questions).Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-c", string(reference))
	cmd.Stdin = &questions
	// Reading it here tells the go command that the result depends on it.
	cmd.Env = append(os.Environ(), "OMNIBUS_VLLM_OMNI="+os.Getenv("OMNIBUS_VLLM_OMNI"))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", python, err, stderr.Bytes())
	}
	lines := json.NewDecoder(bytes.NewReader(out))
	var first struct {
		Format string `json:"format"`
	}
	if err := lines.Decode(&first); err != nil {
		t.Fatal(err)
	}
	for {
		var a Answer
		if err := lines.Decode(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != len(cases) {
		t.Fatalf("%d answers to %d questions", len(answers), len(cases))
	}
	return answers, first.Format
}

// Codec is how Go encodes and decodes a value for [AgainstPython].
type Codec struct {
	Describe func(v any) []any // of values that [Describe] does not know
	// Refused are the reasons for which Python may refuse to encode a value.
	Refused []string
	Encode  func(v any) ([][]byte, error)
	// Decode decodes Python's encoding of want, into a target of the type of want.
	Decode func(buffers [][]byte, want any) (any, error)
}

// AgainstPython has Python encode and decode arrays of every dtype and n
// generated values too. Python and Go must encode each to the same bytes, and decode each
// other's bytes to the same value.
func AgainstPython(t *testing.T, c Codec, n int, values *rapid.Generator[any]) {
	t.Helper()
	sent := everyArray()
	for i := range n {
		sent = append(sent, values.Example(i))
	}
	cases := make([]Case, len(sent))
	for i, v := range sent {
		buffers, err := c.Encode(v)
		if err != nil {
			t.Fatalf("value %d: %v", i, err)
		}
		cases[i] = Case{Value: Describe(v, c.Describe), Encoded: Hex(buffers...)}
	}
	answers, source := Ask(t, cases)
	skipped := map[string]int{}
	for i, a := range answers {
		if a.Skipped != "" {
			skipped[a.Skipped]++
			continue
		}
		if a.Difference != "" {
			t.Errorf("value %d: Python decoded something else: %.600s", i, a.Difference)
		}
		if a.Refused != "" {
			if !slices.Contains(c.Refused, a.Refused) {
				t.Errorf("value %d: Python refuses it: %s", i, a.Refused)
			}
			skipped[a.Refused]++
			continue
		}
		if diff := cmp.Diff(a.Encoded, cases[i].Encoded); diff != "" {
			t.Errorf("value %d: encoded differently (-Python +Go):\n%.600s", i, diff)
		}
		got, err := c.Decode(unhex(t, a.Encoded), sent[i])
		if err != nil {
			t.Errorf("value %d: Go cannot decode what Python made: %v", i, err)
		} else if diff := cmp.Diff(Arrived(sent[i]), got, Equal); diff != "" {
			t.Errorf("value %d: Go decoded something else (-want +got):\n%.600s", i, diff)
		}
	}
	t.Logf("%d values, the format as in %s; skipped: %v", len(sent), source, skipped)
}

func unhex(t *testing.T, texts []string) [][]byte {
	t.Helper()
	buffers := make([][]byte, len(texts))
	for i, text := range texts {
		var err error
		if buffers[i], err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
	}
	return buffers
}

// Hex returns buffers as a [Case] has them.
func Hex(buffers ...[]byte) []string {
	texts := make([]string, len(buffers))
	for i, b := range buffers {
		texts[i] = hex.EncodeToString(b)
	}
	return texts
}
