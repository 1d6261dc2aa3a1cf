package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// probed is a driver that says what it is told to.
type probed struct {
	cudaipc.Driver
	caps []cudaipc.Caps
	err  error
}

func (probed) Name() string { return "probed" }

func (p probed) Probe(context.Context) ([]cudaipc.Caps, error) { return p.caps, p.err }

func (probed) Close() error { return nil }

func TestProbeGPUs(t *testing.T) {
	good := cudaipc.Caps{
		Device: cudaipc.UUID{15: 1}, Name: "Big", Driver: "cuda 12", TotalBytes: 2 << 20, FreeBytes: 1 << 20, GranularityBytes: 2 << 20,
		Arenas: true, Handles: true, Words: true, RegisterHost: true, RegisterReadOnly: true, Peers: []cudaipc.UUID{{15: 2}},
	}
	poor := cudaipc.Caps{Device: cudaipc.UUID{15: 2}, MIG: true, Why: map[string]string{"Arenas": "the container has no IMEX", "Words": "error 801"}}
	opened := func(d probed) func() (cudaipc.Driver, error) {
		return func() (cudaipc.Driver, error) { return d, nil }
	}

	for _, err := range []error{cudaipc.ErrNotBuilt, cudaipc.ErrNoDriver} {
		if g := probeGPUs(t.Context(), func() (cudaipc.Driver, error) { return nil, err }); !errors.Is(g.Err, err) || len(g.Devices) > 0 {
			t.Errorf("without a driver (%v): %+v", err, g)
		}
	}
	if g := probeGPUs(t.Context(), opened(probed{err: cudaipc.ErrSticky})); !errors.Is(g.Err, cudaipc.ErrSticky) || !strings.Contains(g.Err.Error(), "probed") {
		t.Errorf("a driver that fails: %+v", g)
	}
	g := probeGPUs(t.Context(), opened(probed{caps: []cudaipc.Caps{good, poor}}))
	if g.Err != nil || len(g.Devices) != 2 || g.Devices[0].ID != good.Device.String() || g.Devices[0].FreeBytes != 1<<20 {
		t.Fatalf("%+v", g)
	}
	for _, c := range []struct {
		handles bool
		without string
	}{{true, "by handles"}, {false, "through host memory"}} {
		if o := offers(cudaipc.Caps{Handles: c.handles})[0]; o.Name != "arenas" || !strings.Contains(o.Without, c.without) {
			t.Errorf("without arenas, and handles %t: %+v", c.handles, o)
		}
	}
	for i, want := range [][]string{
		{
			"arenas true memory is shared by descriptors, in steps of 2048 KiB", "handles true", "words true", "host memory true",
			"read-only host memory true", "peers true GPU-00000000-0000-0000-0000-000000000002",
		},
		{
			"arenas false the container has no IMEX", "handles false the device has it not", "words false error 801", "host memory false",
			"read-only host memory false", "mig true this is a part", "peers true none",
		},
	} {
		if got := g.Devices[i].Offers; len(got) != len(want) {
			t.Fatalf("device %d: %+v", i, got)
		}
		for j, o := range g.Devices[i].Offers {
			if line := fmt.Sprint(o.Name, " ", o.OK, " ", o.Found); !strings.HasPrefix(line, want[j]) || (!o.OK && o.Without == "") {
				t.Errorf("device %d: %q, want %q, and what is done without it (%q)", i, line, want[j], o.Without)
			}
		}
	}
}
