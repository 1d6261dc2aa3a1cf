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
	"strings"
	"testing"
)

//go:embed reference.py
var reference []byte

// Case is a value for Python to build, encode and decode.
type Case struct {
	// Value describes the value: the name of a kind, and what it takes.
	Value []any `json:"value"`
	// Encoded is what Go made of the value, each buffer in hex.
	Encoded []string `json:"encoded"`
}

// Answer is what Python has to say to a [Case].
type Answer struct {
	// Skipped says why this Python cannot build the value.
	Skipped string `json:"skipped"`
	// Encoded is what Python made of the value, each buffer in hex.
	Encoded []string `json:"encoded"`
	// Difference says how the value that Python decoded from Go's bytes
	// differs, or is empty.
	Difference string `json:"difference"`
}

// Python returns the interpreter that has the modules: $OMNIBUS_PYTHON, or
// else python3. Without one the test is skipped, and says what is missing.
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	name := os.Getenv("OMNIBUS_PYTHON")
	if name == "" {
		name = "python3"
	}
	python, err := exec.LookPath(name)
	if err != nil {
		t.Skipf("%v; set OMNIBUS_PYTHON", err)
	}
	for _, module := range modules {
		if out, err := exec.Command(python, "-c", "import "+module).CombinedOutput(); err != nil {
			t.Skipf("%s has no module %s; set OMNIBUS_PYTHON to one that has it: %s", python, module, lastLine(out))
		}
	}
	return python
}

func lastLine(out []byte) string {
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	return lines[len(lines)-1]
}

// Ask has Python encode and decode values in a format. It returns an answer
// to each case, and what Python knows the format from.
//
// For the format omni that is the package vllm_omni in the folder
// $OMNIBUS_VLLM_OMNI, if it is set, and a description of the format if not.
func Ask(t testing.TB, format string, cases []Case) (answers []Answer, source string) {
	t.Helper()
	python := Python(t, "msgspec", "numpy")
	var questions bytes.Buffer
	for _, c := range cases {
		if err := json.NewEncoder(&questions).Encode(c); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(python, "-c", string(reference), format)
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

// Hex returns buffers as a [Case] has them.
func Hex(buffers ...[]byte) []string {
	texts := make([]string, len(buffers))
	for i, b := range buffers {
		texts[i] = hex.EncodeToString(b)
	}
	return texts
}
