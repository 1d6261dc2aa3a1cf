package pythontest

import (
	"cmp"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Interpreter returns an interpreter that has the modules. If there is none, it skips
// the test with a message that names the missing part.
func Interpreter(t testing.TB, modules ...string) string {
	t.Helper()
	python, err := exec.LookPath(cmp.Or(os.Getenv("OMNIBUS_PYTHON"), "python3"))
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

// Command returns the command of a program that can import this repository's client,
// which comes first in its $PYTHONPATH. Its standard error is that of the test.
func Command(t testing.TB, script string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(Interpreter(t), append([]string{script}, args...)...)
	path := client(t)
	if others := os.Getenv("PYTHONPATH"); others != "" { // an empty part is the working directory
		path += string(filepath.ListSeparator) + others
	}
	cmd.Env = append(os.Environ(), "PYTHONPATH="+path)
	cmd.Stderr = os.Stderr
	return cmd
}

// client is the folder of the client, above the folder of the test's package.
func client(t testing.TB) string {
	t.Helper()
	at, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for ; ; at = filepath.Dir(at) {
		dir := filepath.Join(at, "clients", "python", "src")
		if _, err := os.Stat(dir); err == nil {
			return dir
		}
		if at == filepath.Dir(at) {
			t.Fatal("no folder above this package has clients/python/src")
		}
	}
}
