package doctor

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

const (
	pythonTimeout = 10 * time.Second
	// pythonMinor is the oldest minor version of Python 3 that the client supports.
	pythonMinor = 10
)

// python checks for an interpreter and the client. Without them stages can be written in other
// languages.
func python(ctx context.Context, interpreter string) []Check {
	ctx, cancel := context.WithTimeout(ctx, pythonTimeout)
	defer cancel()
	path, err := exec.LookPath(interpreter)
	if err != nil {
		return []Check{note("python", "there is no "+interpreter+" in PATH", "stages in Python need one; others do not")}
	}
	out, err := exec.CommandContext(ctx, path, "-c", "import sys; print(*sys.version_info[:3])").Output()
	var major, minor, patch int
	if _, scanErr := fmt.Sscan(string(out), &major, &minor, &patch); err != nil || scanErr != nil {
		return []Check{note("python", fmt.Sprintf("%s does not work: %v", path, errors.Join(err, scanErr)), "stages in Python need one that does")}
	}
	version := found("python", "%d.%d.%d at %s", major, minor, patch, path)
	if major < 3 || major == 3 && minor < pythonMinor {
		version.Verdict, version.Advice = Note, fmt.Sprintf("the client needs 3.%d or later", pythonMinor)
		return []Check{version}
	}
	return []Check{version, pythonClient(ctx, path)}
}

func pythonClient(ctx context.Context, path string) Check {
	out, err := exec.CommandContext(ctx, path, "-c", "import omnibus; print(omnibus.__file__)").CombinedOutput()
	if err != nil {
		return note("python client", "not installed for "+path, "pip install ./clients/python, or put clients/python/src into PYTHONPATH")
	}
	return found("python client", "%s", strings.TrimSpace(string(out)))
}
