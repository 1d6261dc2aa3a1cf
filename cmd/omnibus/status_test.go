package main

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/omnibus-runtime/omnibus/bus"
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
