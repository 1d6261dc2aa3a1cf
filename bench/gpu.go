package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/cuda"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
)

// The drivers of RunGPU.
const (
	DriverEmul = "emul"
	DriverCUDA = "cuda"
)

// A gpuSpec is the part of a peerSpec for a peer that receives tensors on a GPU.
type gpuSpec struct {
	Driver      string
	Waiting     string // how lanes wait: a name of laneWaitings
	TensorBytes int64
	PoolBytes   int64  // size of the only arena
	HoldBytes   int64  // size of the copies that delay a stream; 0: no copies
	Stage       string // the stage that it serves
}

// The targets of the GPU lane, for one H200: on other GPUs they are less meaningful. On an
// emulated GPU speeds have no target.
const (
	startSpinning = 15.0 // µs, at half of all publications
	startBlocking = 40.0
	ofRawCopy     = 0.85 // of its speed, from this size on:
	gatedFrom     = 64 * mib
	ofPinnedCopy  = 0.9
	freeWithin    = 50.0 // ms, for all chunks of a dead process
)

// RunGPU is Run for tensors that are sent to another process in the memory of a GPU. With
// Options.Driver emul it measures the cost of the protocol, and not that of GPUs.
func RunGPU(ctx context.Context, opts Options) (Report, error) {
	driver, err := openDriver(opts.withDefaults().Driver)
	if err != nil {
		return Report{Machine: thisMachine(), Quick: opts.Quick, Results: []Result{}, Skipped: []Skip{}}, err
	}
	caps, err := driver.Probe(ctx)
	if closed := driver.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return Report{Machine: thisMachine(), Quick: opts.Quick, Results: []Result{}, Skipped: []Skip{}}, err
	}
	report, err := run(ctx, opts, gpuScenarios(opts.withDefaults()))
	report.Machine.GPU = fmt.Sprintf("%s, %s", caps[0].Name, caps[0].Driver)
	return report, err
}

// NamesGPU lists the names of all figures of RunGPU with a GPU.
func NamesGPU() []string { return namesOf(gpuScenarios(Options{Driver: DriverCUDA})) }

func openDriver(name string) (cudaipc.Driver, error) {
	switch name {
	case DriverCUDA:
		return cuda.Open(cuda.Options{})
	case DriverEmul:
		return emul.New(emul.Options{TotalBytes: 16 << 30})
	}
	return nil, fmt.Errorf("%w: no driver %q: use %s or %s", ErrOptions, name, DriverEmul, DriverCUDA)
}

// gpuScenarios lists the scenarios of a GPU, in the order in which they are run
// and shown.
func gpuScenarios(opts Options) []scenario {
	all := []scenario{gpuOrderingScenario(opts)}
	sizes := []int64{4 * kib, 64 * kib, mib, 16 * mib, 64 * mib}
	if opts.Driver == DriverCUDA {
		sizes = append(sizes, 256*mib, 1024*mib)
	}
	for _, size := range sizes {
		all = append(all, gpuThroughputScenarios(opts.Driver, size)...)
	}
	for _, waiting := range []string{"spinning", "parked"} {
		all = append(all, gpuLatencyScenario(opts, waiting))
	}
	return append(all, gpuLeasesScenario(opts), gpuReclaimScenario(opts))
}

// The four ways of a tensor that are measured.
const (
	gpuIn    = "in"     // into the pool, without a receiver
	gpuView  = "view"   // into the pool, and another process maps it there
	gpuInOut = "in+out" // into the pool, and another process copies it out
	gpuSpill = "spill"  // into host memory, and another process copies it back onto the GPU
)

func gpuThroughputScenarios(driver string, size int64) []scenario {
	var all []scenario
	for _, way := range []string{gpuIn, gpuView, gpuInOut, gpuSpill} {
		var t target
		switch {
		case size < gatedFrom:
		case way == gpuSpill:
			t = ofGPU(driver, speedOf(ofPinnedCopy))
		default:
			t = ofGPU(driver, speedOf(ofRawCopy))
		}
		s := scenario{
			name: "gpu/" + way + "/size=" + sizeName(int(size)), metrics: []metric{{unit: "µs", target: t, speed: true}},
			open: func(ctx context.Context, opts Options) (trial, error) {
				return openGPUThroughput(ctx, opts, driver, way, size)
			},
		}
		if way == gpuSpill {
			s.needs = spillBytes(size)
		}
		all = append(all, s)
	}
	return all
}

// ofGPU returns the target for a GPU, and no target for an emulated one.
func ofGPU(driver string, t target) target {
	if driver != DriverCUDA {
		return target{}
	}
	return t
}

// gpuFlight is how many tensors of a size are in flight at once.
func gpuFlight(size int64) int { return int(min(max(64*mib/size, 2), 32)) }

// spillBytes is the store that tensors of a size travel through in host memory.
func spillBytes(size int64) int64 {
	return gpuStoreBytes(int(size)+bundleBytes, gpuFlight(size))
}

// gpuStoreBytes is the size of a store with space for one payload more than are in flight, and for 17
// at most.
func gpuStoreBytes(sizeBytes, flight int) int64 {
	const most, beside = 16, 128 // payloads, and bytes of overhead of a store and a lane for each
	return max(int64(min(flight, most)+1)*int64(sizeBytes+beside), mib)
}

// bundleBytes is space for the parts of a payload that are no tensors.
const bundleBytes = 4 * kib

// gpuTrips is the number of round trips of the latency scenario.
func gpuTrips(opts Options) int {
	trips := 100_000
	if opts.Driver != DriverCUDA {
		trips = 5_000
	}
	if opts.Quick {
		trips /= 20
	}
	return trips
}

func gpuLatencyScenario(opts Options, waiting string) scenario {
	gate := map[string]float64{"spinning": startSpinning, "parked": startBlocking}[waiting]
	name := map[string]string{"spinning": "spinning", "parked": "blocking"}[waiting]
	return scenario{
		name: "gpu/latency/" + name, rounds: 1,
		metrics: []metric{
			{name: "start/p50", unit: "µs", target: ofGPU(opts.Driver, valueUpTo(gate))},
			{name: "start/p99", unit: "µs"},
			{name: "trip/p50", unit: "µs"},
			{name: "trip/p99", unit: "µs"},
			{name: "descriptors", unit: "more", target: valueUpTo(0)},
			{name: "memory", unit: "MiB more"},
		},
		open: func(ctx context.Context, o Options) (trial, error) {
			return openGPULatency(ctx, o, waiting, gpuTrips(opts))
		},
	}
}

func gpuOrderingScenario(Options) scenario {
	return scenario{
		name: "gpu/ordering", rounds: 1,
		metrics: []metric{
			{name: "read-early", unit: "tensors", target: valueUpTo(0)},
			{name: "overwritten", unit: "tensors", target: valueUpTo(0)},
			{name: "wrong-readiness-missed", unit: "tensors", target: valueUpTo(0)},
			{name: "wrong-acknowledgement-missed", unit: "tensors", target: valueUpTo(0)},
		},
		open: openGPUOrdering,
	}
}

// The leases of gpuLeases: the longest time of sending, the number before those that count,
// and the number in flight at once. The targets of memory allow for noise in the two
// processes: of a million leases, less than a word of each.
const (
	leasesTime      = 30 * time.Second
	leasesWarmUp    = 10_000
	leasesFlight    = 32
	leasesHeapKiB   = 1024
	leasesMemoryMiB = 8
)

func gpuLeasesScenario(Options) scenario {
	leases := func(opts Options) int {
		if opts.Quick {
			return 20_000
		}
		return 1_000_000
	}
	return scenario{
		name: "gpu/leases", rounds: 1,
		metrics: []metric{
			{name: "sent", unit: "tensors"},
			{name: "time", unit: "µs"},
			{name: "descriptors", unit: "more", target: valueUpTo(0)},
			{name: "segments", unit: "more", target: valueUpTo(0)},
			{name: "streams", unit: "more", target: valueUpTo(0)},
			{name: "events", unit: "more", target: valueUpTo(0)},
			{name: "pieces", unit: "more", target: valueUpTo(0)},
			{name: "gpu-memory", unit: "MiB more", target: valueUpTo(0)},
			{name: "heap", unit: "KiB more", target: valueUpTo(leasesHeapKiB)},
			{name: "memory", unit: "MiB more", target: valueUpTo(leasesMemoryMiB)},
		},
		open: func(ctx context.Context, opts Options) (trial, error) { return openGPULeases(ctx, opts, leases(opts)) },
	}
}

// reclaimTime bounds the time of killing processes: where a GPU takes long to open, fewer
// are killed.
const reclaimTime = 30 * time.Second

func gpuReclaimScenario(Options) scenario {
	kills := func(opts Options) int {
		if opts.Quick {
			return 20
		}
		return 100
	}
	return scenario{
		name: "gpu/reclaim", rounds: 1,
		metrics: []metric{
			{name: "killed", unit: "processes"},
			{name: "teardown/p50", unit: "ms"},
			{name: "teardown/p99", unit: "ms"},
			{name: "teardown/most", unit: "ms"},
			{name: "free/p50", unit: "ms"},
			{name: "free/p99", unit: "ms"},
			{name: "free/most", unit: "ms", target: valueUpTo(freeWithin)},
		},
		open: func(ctx context.Context, opts Options) (trial, error) { return openGPUReclaim(ctx, opts, kills(opts)) },
	}
}
