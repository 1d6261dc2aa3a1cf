package chaos

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// samples are times of one kind.
type samples []time.Duration

func (s samples) String() string {
	if len(s) == 0 {
		return "none"
	}
	all := slices.Sorted(slices.Values(s))
	at := func(percent int) time.Duration { return all[(len(all)-1)*percent/100].Round(10 * time.Microsecond) }
	return fmt.Sprintf("p50 %v, p99 %v, most %v (of %d)", at(50), at(99), at(100), len(all))
}

// report prints the figures of the run.
func (c *run) report() {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.bus.Stats()
	c.t.Logf("%d counted kills at random moments, %d victims stopped; %d kills of victims that held nothing; %d at fault points", c.counted, c.stops, c.uncounted, c.atPoints)
	c.t.Logf("requests: %d completed, %d aborted when their callers died, %d failed when other processes died", s.Completed, s.Aborted, s.Failed)
	if c.scenario.mayFail {
		var all, direct int64
		for _, e := range s.Edges {
			all, direct = all+e.Deliveries, direct+e.Direct
		}
		c.t.Logf("of %d deliveries %d took the direct path", all, direct)
	}
	c.t.Logf("from SIGKILL until the pidfd is readable: %v", c.teardown)
	c.t.Logf("from there until everything is reclaimed: %v", c.reclaiming)
}

// inventory lists the resources of this process that a test must release.
type inventory struct {
	files      []string
	children   []string
	shared     []string
	goroutines goleak.Option
}

func takeInventory(t testing.TB) inventory {
	t.Helper()
	return inventory{files: openFiles(t), children: children(t), shared: sharedFiles(t), goroutines: goleak.IgnoreCurrent()}
}

// compare waits until everything is as it was. Other programs may remove named shared
// memory meanwhile, which is not an error.
func (before inventory) compare(t testing.TB) {
	t.Helper()
	goleak.VerifyNone(t, before.goroutines)
	for limit := time.Now().Add(patience); ; time.Sleep(pollPause) {
		files, kids, shared := openFiles(t), children(t), sharedFiles(t)
		same := len(files) == len(before.files) && slices.Equal(kids, before.children) &&
			!slices.ContainsFunc(shared, func(name string) bool { return !slices.Contains(before.shared, name) })
		if same {
			return
		}
		if time.Now().After(limit) || t.Failed() {
			t.Errorf("descriptors %v, before %v", files, before.files)
			t.Errorf("children %v, before %v", kids, before.children)
			t.Errorf("shared memory %v, before %v", shared, before.shared)
			return
		}
	}
}

// openFiles lists the targets of this process's descriptors, without the one of the
// listing itself.
func openFiles(t testing.TB) []string {
	t.Helper()
	const dir = "/proc/self/fd"
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		if name, err := os.Readlink(dir + "/" + e.Name()); err == nil && !strings.HasPrefix(name, "/proc/") {
			all = append(all, name)
		}
	}
	return all
}

// children lists the processes that this one started.
func children(t testing.TB) []string {
	t.Helper()
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, task := range tasks { // a thread may end meanwhile
		if b, err := os.ReadFile("/proc/self/task/" + task.Name() + "/children"); err == nil {
			all = append(all, strings.Fields(string(b))...)
		}
	}
	slices.Sort(all)
	return all
}

// sharedFiles lists the named shared memory that a bus may have made. Journals of
// connectors and files of their tests are left out: they belong to other programs on
// this machine, since no bus here has any.
func sharedFiles(t testing.TB) []string {
	t.Helper()
	entries, err := os.ReadDir("/dev/shm")
	if err != nil {
		t.Skipf("cannot list shared memory: %v", err)
	}
	var all []string
	for _, e := range entries {
		name := e.Name()
		if strings.Contains(name, "omnibus") && !strings.Contains(name, "test") && !strings.HasPrefix(name, ".omnibus-") {
			all = append(all, name)
		}
	}
	return all
}

// slogTo logs into a tail.
func slogTo(w *tail) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }
