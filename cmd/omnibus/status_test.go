package main

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/bus"
	bushost "github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

// What edges do fits a terminal of 80 columns, also when much goes over them.
func TestStatusOfEdgesFits(t *testing.T) {
	s := host.Status{Phase: host.PhaseReady}
	for _, e := range [][2]string{{"preprocess", "thinker"}, {"thinker", "talker"}, {"", "preprocess"}, {"talker", "postprocess"}, {"postprocess", ""}} {
		s.Stats.Edges = append(s.Stats.Edges, bus.EdgeStats{
			From: e[0], To: e[1], Window: 1024, WindowBytes: 19 << 19, Deliveries: 123_456_789, Bytes: 999<<30 + 1<<29,
			Dropped: 123_456, P50: 31_250 * time.Microsecond, P99: 999_990 * time.Microsecond,
		})
		s.Requests = append(s.Requests, bus.RequestStatus{Edges: []bus.EdgeStatus{{Edge: e[0] + "->" + e[1], Deliveries: 1000, Bytes: 123 << 20, Queued: 12_345}}})
	}
	var out strings.Builder
	for _, table := range []*table{waitTable(&s), sentTable(&s)} {
		if err := table.write(&out); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(line) - 1; n > 80 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	for _, want := range []string{"1024, 9.5 MiB", "1000, 123 MiB", "12345", "123456789", "999.5 GiB", "123456\n", "31.25ms", "999.99ms", "preprocess -> thinker"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%s is not there", want)
		}
	}
	t.Logf("\n%s", out.String())
}

// TestStatusNamesWhatIsUnreported: the figures lack what a process has yet to report, which the status says.
func TestStatusNamesWhatIsUnreported(t *testing.T) {
	s := host.Status{Phase: host.PhaseReady}
	s.Processes = []bushost.ProcessStats{{PID: 4711, Name: "talker", Unreported: true}, {PID: 4712, Name: "thinker"}}
	var out strings.Builder
	if err := writeStatus(&out, &s); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(out.String(), "has not said"); n != 1 || !strings.Contains(out.String(), "\nprocess 4711 (talker) has not said what it has under way\n") {
		t.Errorf("%s\nwant one line about process 4711", out.String())
	}
}

// TestSettled: a question is asked once more if its answer lacks a report, after the time that a report takes, and
// no more.
func TestSettled(t *testing.T) {
	for lacking, want := range []int{1, 2, 2} { // answers that lack a report
		synctest.Test(t, func(t *testing.T) {
			asked, begin := 0, time.Now()
			answer, err := settled(t.Context(), func() (int, error) { asked++; return asked, nil }, func(n int) bool { return n <= lacking })
			if answer != want || asked != want || err != nil || time.Since(begin) != time.Duration(want-1)*reportWait {
				t.Errorf("of %d answers that lack a report: answer %d of %d, %v", lacking, answer, asked, err)
			}
		})
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := settled(gone, func() (int, error) { return 0, nil }, func(int) bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that is gone: %v", err)
	}
}
