package process

import (
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 9 9 9"
	tests := []struct {
		name string
		give string
		want Stat
		ok   bool
	}{
		{name: "sleeping", give: "77 (cat) S" + rest, want: Stat{state: 'S', used: 110 * time.Millisecond, Started: 123450 * time.Millisecond}, ok: true},
		{name: "stopped", give: "77 (cat) T" + rest, want: Stat{state: 'T', used: 110 * time.Millisecond, Started: 123450 * time.Millisecond}, ok: true},
		{name: "a name that lies", give: "77 (a) T 1 (b) S" + rest, want: Stat{state: 'S', used: 110 * time.Millisecond, Started: 123450 * time.Millisecond}, ok: true},
		{name: "cut short", give: "77 (cat) S 1 1 1"},
		{name: "no number", give: "77 (cat) S 1 1 1 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 x 9"},
		{name: "empty"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := parseStat([]byte(tt.give))
			if (err == nil) != tt.ok || got != tt.want {
				t.Errorf("parseStat = %+v, %v; want %+v, ok %v", got, err, tt.want, tt.ok)
			}
		})
	}
}

func TestSelf(t *testing.T) {
	checkNoLeak(t, func() {
		fd, err := Self()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Adopt(fd, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if p.Exited() || !p.alive() {
			t.Error("this process counts as dead")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDuplicate(t *testing.T) {
	checkNoLeak(t, func() {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		own, err := Duplicate(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 || own == int(f.Fd()) {
			t.Errorf("descriptor %d with flags %#x, %v", own, flags, err)
		}
		CloseAll([]int{own})
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if own, err := Duplicate(-1); err == nil {
		t.Errorf("a duplicate %d of an invalid descriptor", own)
	}
}

// checkNoLeak runs f and reports descriptors that it leaves behind.
func checkNoLeak(t *testing.T, f func()) {
	t.Helper()
	before := openFiles(t)
	f()
	for fd, target := range openFiles(t) {
		// The runtime's poller opens its own descriptors once.
		if before[fd] == "" && !strings.Contains(target, "event") {
			t.Errorf("descriptor %s is left behind: %s", fd, target)
		}
	}
}

// openFiles are the open files of this process, by descriptor.
func openFiles(t *testing.T) map[string]string {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	for _, f := range files {
		if target, err := os.Readlink("/proc/self/fd/" + f.Name()); err == nil { // else it was the folder's own
			all[f.Name()] = target
		}
	}
	return all
}

// TestIsSame: the process id may belong to a later process before the pidfd is opened, or right
// after it.
func TestIsSame(t *testing.T) {
	const seen = 20 * time.Second
	for _, tt := range []struct {
		name          string
		before, after time.Duration
		want          bool
	}{
		{name: "the process that was seen", before: 10 * time.Second, after: 10 * time.Second, want: true},
		{name: "another for long", before: 30 * time.Second, after: 30 * time.Second},
		{name: "another since", before: 10 * time.Second, after: 30 * time.Second},
		{name: "another in the same moment", before: 10 * time.Second, after: seen},
	} {
		if got := isSame(Stat{Started: tt.before}, Stat{Started: tt.after}, seen); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
