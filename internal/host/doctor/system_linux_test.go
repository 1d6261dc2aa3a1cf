package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSocketPathTooLong(t *testing.T) {
	c := sockets(filepath.Join(t.TempDir(), strings.Repeat("deep/", 30)))
	if c.Verdict != Failed || !strings.Contains(c.Advice, "XDG_RUNTIME_DIR") {
		t.Errorf("got %+v", c)
	}
}

// TestNoInotifyWatches: a lack of inotify watches is a note, not a failure.
func TestNoInotifyWatches(t *testing.T) {
	if c := watches(); c != found("watching files", "inotify") {
		t.Errorf("got %+v", c)
	}
	var before unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	none := before
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	c := watches()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &before); err != nil {
		t.Fatal(err)
	}
	if c.Verdict != Note || !strings.Contains(c.Advice, "max_user_instances") {
		t.Errorf("got %+v", c)
	}
}

// TestLimits: a limit that hosts of the default sizes exceed is a note.
func TestLimits(t *testing.T) {
	for _, tc := range []struct {
		bytes   uint64
		verdict Verdict
		found   string
	}{
		{unix.RLIM_INFINITY, OK, "no limit found"},
		{4 << 20, OK, "at most 4 MiB"},
		{4<<20 - 1, Note, "at most 3 MiB"},
		{0, Note, "at most 0 MiB"},
	} {
		c := limited("sizes", tc.bytes, 4<<20, "raise it")
		if c.Verdict != tc.verdict || c.Found != tc.found || (c.Advice != "") != (c.Verdict == Note) {
			t.Errorf("%d bytes: got %+v", tc.bytes, c)
		}
	}
}

// TestLimitsOfThisProcess: each check uses its own soft limit.
func TestLimitsOfThisProcess(t *testing.T) {
	for _, tc := range []struct {
		resource int
		check    func() Check
	}{
		{unix.RLIMIT_FSIZE, fileSizes},
		{unix.RLIMIT_AS, addresses},
	} {
		var before unix.Rlimit
		if err := unix.Getrlimit(tc.resource, &before); err != nil {
			t.Fatal(err)
		}
		low := before
		low.Cur = min(before.Max, 1<<62) // a limit that no file reaches
		if err := unix.Setrlimit(tc.resource, &low); err != nil {
			t.Fatal(err)
		}
		c := tc.check()
		if err := unix.Setrlimit(tc.resource, &before); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("at most %d MiB", low.Cur>>20); c.Found != want {
			t.Errorf("got %+v, want %q", c, want)
		}
	}
}

// TestGroupLimit: the tightest limit between the group and the root counts, in both versions of
// cgroups.
func TestGroupLimit(t *testing.T) {
	tests := []struct {
		name        string
		files       map[string]string
		membership  string
		limit, used int64
		ok          bool
	}{
		{"none", nil, "0::/user/app\n", 0, 0, false},
		{"no limit", map[string]string{"app/memory.max": "max", "app/memory.current": "5"}, "0::/app\n", 0, 0, false},
		{"own", map[string]string{"app/memory.max": "100", "app/memory.current": "40"}, "0::/app\n", 100, 40, true},
		{"of the parent", map[string]string{
			"user/app/memory.max": "100", "user/app/memory.current": "10",
			"user/memory.max": "60", "user/memory.current": "50",
		}, "0::/user/app\n", 60, 50, true},
		{"version 1", map[string]string{
			"memory/app/memory.limit_in_bytes": "100", "memory/app/memory.usage_in_bytes": "30",
			"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "31",
		}, "5:cpu:/app\n4:memory:/app\n", 100, 30, true},
		{"nonsense", nil, "x\n\n:::\n", 0, 0, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			for name, text := range tt.files {
				path := filepath.Join(root, name)
				if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, []byte(text+"\n"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			limit, used, ok := groupLimit(root, tt.membership)
			if limit != tt.limit || used != tt.used || ok != tt.ok {
				t.Errorf("got %d, %d, %v", limit, used, ok)
			}
		})
	}
}

func TestField(t *testing.T) {
	const text = "MemTotal:  10 kB\nMemAvailable:   7 kB\n"
	if n, ok := field(text, "MemAvailable:"); n != 7 || !ok {
		t.Errorf("got %d, %v", n, ok)
	}
	if _, ok := field(text, "MemFree:"); ok {
		t.Error("found what is not there")
	}
}
