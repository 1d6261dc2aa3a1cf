//go:build unix

package child

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestStartErrors(t *testing.T) {
	dir := t.TempDir()
	file := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	plain := file("plain", "text", 0o600)
	nonsense := file("nonsense", "neither a program nor a script", 0o700)
	orphan := file("orphan", "#!/does/not/exist\n", 0o700)
	if err := os.Mkdir(filepath.Join(dir, "bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	file("bin/talker", "#!/bin/sh\n", 0o700)
	t.Chdir(dir) // bin in PATH would lead to it
	tests := []struct {
		name string
		spec Spec
		want string
	}{
		{
			name: "not in PATH",
			spec: Spec{Args: []string{"talker"}, Env: []string{"PATH=/nowhere:bin"}},
			want: `"talker" is not in PATH (/nowhere:bin): install it, set PATH, or give its full path`,
		},
		{
			name: "in PATH, but not executable",
			spec: Spec{Args: []string{"plain"}, Env: []string{"PATH=/nowhere:" + dir}},
			want: `"plain" is in PATH (/nowhere:` + dir + `), but is not an executable file`,
		},
		{
			name: "no PATH", spec: Spec{Args: []string{"talker"}, Env: []string{"PATH="}},
			want: `"talker" cannot be found, because PATH is empty: set PATH, or give its full path`,
		},
		{
			name: "no such file", spec: Spec{Args: []string{"/does/not/exist"}},
			want: `there is no file "/does/not/exist": check the path`,
		},
		{
			name: "no such file in the directory", spec: Spec{Args: []string{"./talker"}, Dir: dir},
			want: `there is no file "./talker" (from ` + dir + `): check the path`,
		},
		{
			name: "not executable", spec: Spec{Args: []string{plain}},
			want: `"` + plain + `" is not an executable file: make it one, or name an interpreter before it`,
		},
		{
			name: "a directory", spec: Spec{Args: []string{dir}},
			want: `"` + dir + `" is not an executable file: make it one, or name an interpreter before it`,
		},
		{
			name: "no program", spec: Spec{Args: []string{nonsense}},
			want: nonsense + " is not a program for this machine, nor a script that begins with #! and its interpreter",
		},
		{
			name: "no interpreter", spec: Spec{Args: []string{orphan}},
			want: orphan + " is there, but the interpreter or loader that it names is not: look at its first line",
		},
		{
			name: "no such directory", spec: Spec{Args: []string{"/bin/sh"}, Dir: "/does/not/exist"},
			want: "the working directory /does/not/exist does not exist: create it, or name another",
		},
		{
			name: "the directory is a file", spec: Spec{Args: []string{"/bin/sh"}, Dir: plain},
			want: "the working directory " + plain + " is not a directory",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := newRig(t)
			test.spec.Name = "talker/0"
			c, err := r.Start(test.spec)
			var start *StartError
			if c != nil || !errors.As(err, &start) {
				t.Fatalf("got %v and %v", c, err)
			}
			if want := "child: start talker/0: " + test.want; !strings.HasPrefix(err.Error(), want) {
				t.Errorf("error\n%s\nwant\n%s", err, want)
			}
			if !start.permanent() {
				t.Error("it would be tried again")
			}
			select {
			case e := <-r.events:
				t.Errorf("event %s", e)
			default:
			}
		})
	}
}

// TestNoDescriptorsLeft: a lack of descriptors is not permanent, and the error names the remedy.
func TestNoDescriptorsLeft(t *testing.T) {
	err := &StartError{Name: "talker/0", Program: "sh", Path: "/bin/sh", Err: &os.PathError{Op: "fork/exec", Path: "/bin/sh", Err: syscall.EMFILE}}
	if want := "raise the limit of this process (ulimit -n, or LimitNOFILE= in a systemd unit)"; !strings.HasSuffix(err.Error(), want) || err.permanent() {
		t.Errorf("error %q, permanent: %v", err, err.permanent())
	}
}

func TestSpecErrors(t *testing.T) {
	tests := []struct {
		name string
		edit func(*Spec)
		want string
	}{
		{name: "no name", edit: func(s *Spec) { s.Name = "" }, want: "printable"},
		{name: "two lines", edit: func(s *Spec) { s.Name = "a\nb" }, want: `"a\nb"`},
		{name: "no program", edit: func(s *Spec) { s.Args = nil }, want: "command line"},
		{name: "empty program", edit: func(s *Spec) { s.Args = []string{""} }, want: "command line"},
		{name: "no value", edit: func(s *Spec) { s.Env = []string{"KEY"} }, want: `"KEY"`},
		{name: "no key", edit: func(s *Spec) { s.Env = []string{"=x"} }, want: `"=x"`},
		{name: "policy", edit: func(s *Spec) { s.Restart = "sometimes" }, want: "on-failure"},
		{name: "grace", edit: func(s *Spec) { s.Grace = -1 }, want: "grace"},
		{name: "start timeout", edit: func(s *Spec) { s.StartTimeout = -1 }, want: "start timeout"},
		{name: "first pause", edit: func(s *Spec) { s.Backoff.First = -1 }, want: "first pause"},
		{name: "longest pause", edit: func(s *Spec) { s.Backoff.Max = time.Nanosecond }, want: "longest"},
		{name: "shrinking", edit: func(s *Spec) { s.Backoff.Factor = 0.5 }, want: "factor"},
		{name: "no number", edit: func(s *Spec) { s.Backoff.Factor = math.NaN() }, want: "factor"},
		{name: "reset", edit: func(s *Spec) { s.Backoff.Reset = -1 }, want: "reset"},
		{name: "limit", edit: func(s *Spec) { s.Backoff.Limit = MaxLimit + 1 }, want: "limit"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := Spec{Name: "talker/0", Args: []string{"talker"}}
			test.edit(&s)
			_, err := newRig(t).Start(s)
			if err == nil || !strings.HasPrefix(err.Error(), "child: ") || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one about %s", err, test.want)
			}
		})
	}
}
