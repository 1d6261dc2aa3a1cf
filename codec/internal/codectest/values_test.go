package codectest_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/internal/golden"
	"github.com/omnibus-runtime/omnibus/internal/pythontest"
)

const tests = "../../../clients/python/tests/"

// TestValuesPage compares docs/values.md with the list of values that the tests send.
func TestValuesPage(t *testing.T) {
	golden.Compare(t, "../../../docs/values.md", ask(t, nil, "valuepage.py"))
}

// TestPythonToGoToPython has a Go process decode all values of docs/values.md into an any, and
// encode them again. Python reports whether each arrives as documented.
func TestPythonToGoToPython(t *testing.T) {
	pythontest.Interpreter(t, "numpy")
	for _, s := range []codec.Serializer{codec.MsgpackSerializer{}, bundle.Serializer{}, omni.Serializer{}} {
		t.Run(s.Name(), func(t *testing.T) {
			sent := ask(t, nil, "throughgo.py", "send", s.Name())
			var passedOn strings.Builder
			lines := bufio.NewScanner(bytes.NewReader(sent))
			lines.Buffer(nil, len(sent)+1)
			n := 0
			for ; lines.Scan(); n++ {
				payload, err := hex.DecodeString(lines.Text())
				if err != nil {
					t.Fatal(err)
				}
				if payload, err = again(s, payload); err != nil {
					fmt.Fprintf(&passedOn, "refused %q\n", err)
				} else {
					fmt.Fprintf(&passedOn, "%x\n", payload)
				}
			}
			if n < 100 {
				t.Errorf("%d values: too few", n)
			}
			if faults := ask(t, strings.NewReader(passedOn.String()), "throughgo.py", "get", s.Name()); len(faults) > 0 {
				t.Errorf("%s", faults)
			}
		})
	}
}

// again decodes a value and encodes it.
func again(s codec.Serializer, payload []byte) ([]byte, error) {
	v, err := codec.Decode[any](s, payload)
	if err != nil {
		return nil, err
	}
	return s.Append(nil, v)
}

// ask runs a program of the client's tests, and returns its output.
func ask(t *testing.T, in io.Reader, program string, args ...string) []byte {
	t.Helper()
	for _, name := range []string{program, "valuelist.py"} { // read here, so that the go command notices their changes
		if _, err := os.Stat(tests + name); err != nil {
			t.Fatal(err)
		}
	}
	cmd := pythontest.Command(t, tests+program, args...)
	cmd.Stdin = in
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}
