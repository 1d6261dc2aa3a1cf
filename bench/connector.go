package bench

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
)

// connectorSizes are the payloads that are handed over through connectors, in
// bytes: those of the one array in a value. Chunks on their way to a vocoder have 3 to 16 KB.
var connectorSizes = []int{kib, 4 * kib, 16 * kib, 64 * kib, mib, 16 * mib}

// segmentCost is what a segment may cost beside a bare file, of any size.
const segmentCost = 1.2

// How many times as fast as the reference rings are, by size.
var (
	pythonRing = map[int]target{kib: speedOf(1), 4 * kib: speedOf(1), 16 * kib: speedOf(1), mib: speedOf(3), 16 * mib: speedOf(10)}
	goRing     = map[int]target{mib: speedOf(15)}
)

// A handOver is a means by which values go from one process to another, both of
// the same language.
type handOver string

const (
	byReference handOver = "reference" // vLLM-Omni's SharedMemoryConnector
	byStandIn   handOver = "stand-in"  // the same steps, written anew
	byRing      handOver = "ring"      // a connector's ring, in the exchange of a host
	bySegment   handOver = "segment"   // a connector's segments
	byFile      handOver = "bare"      // a file, with no connector
	byLocked    handOver = "locked"    // the same, with the lock file that the format of segments asks for
	byMemory    handOver = "floor"     // memory that both have, with no connector
)

// A connectorSpec says what one of the two processes does that hand values over.
type connectorSpec struct {
	By     handOver
	Python bool `json:",omitempty"`
	// Hosts has the process that puts host the bus of a ring; otherwise a third
	// one does.
	Hosts bool `json:",omitempty"`
	Gets  bool `json:",omitempty"` // and the other one puts
}

// omniVariable lists directories that each have a package vllm_omni, of which the
// first is the reference.
const omniVariable = "OMNIBUS_VLLM_OMNI"

// omniDirectory is where the reference lies; empty: nowhere.
func omniDirectory() string {
	if all := filepath.SplitList(os.Getenv(omniVariable)); len(all) > 0 {
		return all[0]
	}
	return ""
}

// connectorScenarios lists what is measured of connectors.
func connectorScenarios() []scenario {
	var all []scenario
	for _, size := range connectorSizes {
		all = append(all, connectorRace(size))
	}
	return all
}

// RunConnector is Run for values that go to another process through connectors.
func RunConnector(ctx context.Context, opts Options) (Report, error) {
	return run(ctx, opts, connectorScenarios())
}

// NamesConnector lists the names of all figures of RunConnector.
func NamesConnector() []string { return namesOf(connectorScenarios()) }

// connectorRace compares everything with the reference, and segments also with
// bare files, and with such that have the lock of their format.
func connectorRace(size int) scenario {
	p := roundTrip(size)
	p.Answer = 0 // a line of text
	reference := byReference
	if omniDirectory() == "" {
		reference = byStandIn
	}
	means := []struct {
		name   string
		spec   connectorSpec
		target target
	}{
		{string(reference), connectorSpec{By: reference, Python: true}, target{}},
		{"python-ring", connectorSpec{By: byRing, Python: true}, pythonRing[size]},
		{"python-segment", connectorSpec{By: bySegment, Python: true}, target{}},
		{"python-bare", connectorSpec{By: byFile, Python: true}, target{}},
		{"python-locked", connectorSpec{By: byLocked, Python: true}, target{}},
		{"go-ring", connectorSpec{By: byRing, Hosts: true}, goRing[size]},
		{"go-ring-nodes", connectorSpec{By: byRing}, goRing[size]},
		{"go-floor", connectorSpec{By: byMemory}, target{}},
		{"go-segment", connectorSpec{By: bySegment}, target{}},
		{"go-bare", connectorSpec{By: byFile}, target{}},
		{"go-locked", connectorSpec{By: byLocked}, target{}},
	}
	var contenders []contender
	var all []comparison
	for _, m := range means {
		contenders = append(contenders, contender{name: m.name, spec: peerSpec{Carrier: byConnector, Connector: &m.spec, Pattern: p}})
		c := comparison{name: m.name, ours: m.name, against: string(reference), speed: true, target: m.target}
		if m.name == c.against {
			c.against = "" // its own time
		}
		all = append(all, c)
	}
	for _, language := range []string{"python", "go"} {
		segment, bare, locked := language+"-segment", language+"-bare", language+"-locked"
		all = append(all,
			comparison{name: segment + "-to-bare", ours: segment, against: bare, target: ratioUpTo(segmentCost)},
			comparison{name: segment + "-to-locked", ours: segment, against: locked},
			comparison{name: locked + "-to-bare", ours: locked, against: bare})
	}
	return raceOf("connector/size="+sizeName(size), p, contenders, all)
}

// storeBytes is the size of the store that a ring has where nobody says another.
func (s connectorSpec) storeBytes() int64 {
	if s.By == byRing {
		return 64 * mib
	}
	return 0
}

// benchKey is the key of a process's n-th value, as the stages of vLLM-Omni make
// them: of a request, a stage and a chunk.
func benchKey(pid, n int) string { return benchRequest(pid) + "_0_" + strconv.Itoa(n) }

func benchRequest(pid int) string { return "omnibus-bench-" + strconv.Itoa(pid) }
