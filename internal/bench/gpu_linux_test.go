package bench

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGPU measures a little of everything on an emulated GPU. What is out of order
// is no failure of a run: it is one here.
func TestGPU(t *testing.T) {
	match := regexp.MustCompile(`^gpu/(ordering/.*|(in|view|in\+out|spill)/size=4KiB|latency/.*/start/p50)$`)
	report, err := RunGPU(t.Context(), Options{Quick: true, Match: match, Peer: testPeer})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range report.Results {
		names = append(names, r.Name)
		switch {
		case strings.HasPrefix(r.Name, "gpu/ordering/"):
			if r.Value != 0 {
				t.Errorf("%s: %v", r.Name, r.Value)
			}
		case r.Value <= 0:
			t.Errorf("%s took %v", r.Name, r.Value)
		}
	}
	var want []string
	for _, name := range NamesGPU() {
		if match.MatchString(name) {
			want = append(want, name)
		}
	}
	if !slices.Equal(names, want) || len(report.Skipped) > 0 {
		t.Errorf("measured are %q, skipped %v; want %q", names, report.Skipped, want)
	}
}

// TestGPUPeerDies: a run ends when the other process does.
func TestGPUPeerDies(t *testing.T) {
	opts := Options{Peer: testPeer, Driver: DriverEmul}
	opened, err := openGPULatency(t.Context(), opts, "parked", 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	l := opened.(*gpuLatency)
	if _, _, err := l.run(t.Context(), 10); err != nil {
		t.Fatal(err)
	}
	if err := l.peer.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.round(t.Context(), false); err == nil {
		t.Error("a run without a peer went well")
	}
	if err := l.close(t.Context()); err != nil {
		t.Error(err)
	}
}
