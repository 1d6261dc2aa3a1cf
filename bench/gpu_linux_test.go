package bench

import (
	"context"
	"errors"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestGPU measures each scenario briefly on an emulated GPU. A missed target of ordering or leases,
// which is no error of a run, fails the test.
func TestGPU(t *testing.T) {
	match := regexp.MustCompile(`^gpu/(ordering/.*|(in|view|in\+out|spill)/size=4KiB|latency/.*/start/p50|leases/(sent|time|descriptors|segments|streams|events|pieces|gpu-memory)|reclaim/(killed|teardown/p50))$`)
	report, err := RunGPU(t.Context(), Options{Quick: true, Match: match, Peer: testPeer})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range report.Results {
		names = append(names, r.Name)
		switch {
		case r.Name == "gpu/leases/streams", r.Name == "gpu/leases/events":
			// They are pooled, and the number in use at once is a matter of chance: one more
			// may be needed than before. A leak would be hundreds.
			if r.Value > 1 {
				t.Errorf("%s: %v", r.Name, r.Value)
			}
		case strings.HasPrefix(r.Name, "gpu/ordering/"), strings.HasPrefix(r.Name, "gpu/leases/") && r.Target != nil:
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

// TestGPULeasesLeak: each kind of leak shows in a figure of its own.
func TestGPULeasesLeak(t *testing.T) {
	opened, err := openGPULeases(t.Context(), Options{Peer: testPeer, Driver: DriverEmul}, 100)
	if err != nil {
		t.Fatal(err)
	}
	l := opened.(*gpuLeases)
	l.beforeSecondCount = func(p *gpuPair) error {
		all, err := p.usage(t.Context())
		if err != nil {
			return err
		}
		own, err := p.count(t.Context())
		for i, theirs := range all.minus(own) {
			if theirs <= 0 && i != usedEvents && i != usedPieces {
				t.Errorf("the other process counts %[2]d of kind %[1]d", i, theirs)
			}
		}
		return errors.Join(err, leakAll(t.Context(), p))
	}
	samples, err := l.round(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range gpuLeasesScenario(Options{}).metrics {
		r := summarise(m.name, m, samples[i:i+1])
		switch m.name {
		case "sent", "time", "heap", "memory":
		default:
			if r.Met == nil || *r.Met {
				t.Errorf("%s: %v %s meet the target in spite of the leak", r.Name, r.Value, r.Unit)
			}
		}
	}
	if err := l.close(t.Context()); err != nil {
		t.Error(err)
	}
}

// leakAll leaks one resource of each kind, for as long as the pair is open.
func leakAll(ctx context.Context, p *gpuPair) error {
	fd, err := unix.Dup(0)
	if err != nil {
		return err
	}
	p.onClose(func(context.Context) error { return unix.Close(fd) })
	mem, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ, unix.MAP_SHARED|unix.MAP_ANONYMOUS)
	if err != nil {
		return err
	}
	p.onClose(func(context.Context) error { return unix.Munmap(mem) })
	s, err := p.dev.NewStream()
	if err != nil {
		return err
	}
	p.onClose(func(context.Context) error { return s.Close() })
	e, err := p.dev.NewEvent()
	if err != nil {
		return err
	}
	p.onClose(func(context.Context) error { return e.Close() })
	if _, err := p.alloc(mib); err != nil {
		return err
	}
	// The store charges the peer for this one, and the peer never gets its handle.
	_, err = p.commit(ctx, map[string]any{"x": p.tensor()}, gpulane.Pool, p.readers)
	return err
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
		t.Error("a run without a peer returned no error")
	}
	if err := l.close(t.Context()); err != nil {
		t.Error(err)
	}
}
