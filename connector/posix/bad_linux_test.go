package posix_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/posix"
)

func TestOptions(t *testing.T) {
	for name, o := range map[string]posix.Options{
		"no name":     {},
		"a slash":     {Name: "a/b"},
		"a dot":       {Name: "a.b"},
		"up":          {Name: ".."},
		"long":        {Name: strings.Repeat("a", posix.MaxNameBytes+1)},
		"a byte of 0": {Name: "a\x00b"},
		"readers":     {Name: "a", Readers: posix.MaxReaders + 1},
		"no readers":  {Name: "a", Readers: -1},
		"bytes":       {Name: "a", Bytes: 100},
		"timeout":     {Name: "a", Timeout: -1},
		"ttl":         {Name: "a", TTL: -1},
		"looks":       {Name: "a", LookEvery: -1},
	} {
		if _, err := posix.New(o); !errors.Is(err, connector.ErrSettings) {
			t.Errorf("%s: %v, want ErrSettings", name, err)
		}
	}
	if _, err := posix.New(posix.Options{Name: "a", Dir: "/nowhere"}); !errors.Is(err, connector.ErrUnavailable) {
		t.Errorf("no directory: %v", err)
	}
}

// TestNotOurs: what has a store's name and is none of this user's is refused, from both
// sides, and stays.
func TestNotOurs(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"a link": func(path string) error {
			target := filepath.Join(t.TempDir(), "secret")
			return errors.Join(os.WriteFile(target, nil, 0o600), os.Symlink(target, path))
		},
		"a directory": func(path string) error {
			return os.Mkdir(path, 0o700)
		},
		"a pipe":  func(path string) error { return unix.Mkfifo(path, 0o600) },
		"open":    func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, 0o644)) },
		"foreign": func(path string) error { return errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, 12345, -1)) },
	} {
		for _, file := range []string{"", ".arena"} {
			t.Run(name+" "+file, func(t *testing.T) {
				opts := fresh(t)
				if err := spoil(opts.head() + file); err != nil {
					if name == "foreign" && errors.Is(err, os.ErrPermission) {
						t.Skip("it takes root to give a file away")
					}
					t.Fatal(err)
				}
				end := open(t, opts.options())
				_, err := tryPut(t.Context(), end, "key", old)
				wantErr(t, "put", err, connector.ErrUnavailable)
				if err == nil || !strings.Contains(err.Error(), opts.head()+file) {
					t.Errorf("it does not say which file: %v", err)
				}
				_, err = end.Get(t.Context(), edge, "key", nil)
				if want := connector.ErrUnavailable; file == "" {
					wantErr(t, "get", err, want)
				} else {
					wantErr(t, "get", err, connector.ErrNotFound)
				}
				if _, err := os.Lstat(opts.head() + file); err != nil {
					t.Errorf("it is gone: %v", err)
				}
			})
		}
	}
}

// TestOtherRelease: what another release has made is not read; what is left of it is
// removed.
func TestOtherRelease(t *testing.T) {
	opts := fresh(t)
	creator, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	put(t, creator, "key", old)
	f, err := os.OpenFile(opts.head(), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{99}, 8); err != nil {
		t.Fatal(err)
	}
	f.Close()
	getter := open(t, opts.options())
	_, err = getter.Get(t.Context(), edge, "key", nil)
	wantErr(t, "get", err, connector.ErrUnavailable)
	if err == nil || !strings.Contains(err.Error(), "same release") {
		t.Errorf("it does not say what to do: %v", err)
	}
	if err := creator.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(opts.head()+".of another release", nil, 0o600), os.WriteFile(opts.head(), []byte("OMNIBUSN\x63"), 0o600)); err != nil {
		t.Fatal(err)
	}
	next, err := newEnd(opts)
	if err != nil {
		t.Fatal(err)
	}
	wantValue(t, getter, "key", put(t, next, "key", old), old)
	if err := errors.Join(getter.Close(), next.Close()); err != nil {
		t.Error(err)
	}
	wantEmpty(t, opts)
}

// TestSpoiled: files that were cut short are not mapped.
func TestSpoiled(t *testing.T) {
	for _, part := range []string{".arena", ".directory", ".index", ".ledger-1", ".marks-1"} {
		t.Run(part, func(t *testing.T) {
			opts := fresh(t)
			creator := spawn(t, opts, "")
			put(t, creator, "key", old)
			getter := open(t, opts.options())
			if err := os.Truncate(opts.head()+part, 100); err != nil {
				t.Fatal(err)
			}
			_, err := getter.Get(t.Context(), edge, "key", nil)
			wantErr(t, "get", err, connector.ErrCorrupt)
			creator.Kill() // before it finds out what was done to it
		})
	}
}

// TestModes: all files are their user's alone.
func TestModes(t *testing.T) {
	opts := fresh(t)
	creator := open(t, opts.options())
	put(t, creator, "key", old)
	files := list(t, opts.Dir)
	for _, want := range []string{"-speech", ".arena", ".directory", ".index", ".ledger-1", ".marks-1", ".room"} {
		if !has(files, want) {
			t.Errorf("no file %s: %q", want, files)
		}
	}
	for _, name := range files {
		if info, err := os.Lstat(filepath.Join(opts.Dir, name)); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}
