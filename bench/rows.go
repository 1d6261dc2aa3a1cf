package bench

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"time"
)

// Bounds of Options.Rounds, and of Options.Slice.
const (
	DefaultRounds = 9
	MaxRounds     = 1001
	DefaultSlice  = 200 * time.Millisecond
	MaxSlice      = time.Minute
)

// The columns of the table. Each but the first is a peer.
const (
	ours          = "omnibus"
	socket        = "unix"
	socketRelayed = "unix relayed" // through a process between the two
	grpcDirect    = "grpc"
	grpcRelayed   = "grpc relayed" // through a server between the two
	natsServer    = "nats"
	zeroMQ        = "zmq"
	pythonQueue   = "mp.Queue"
	segmentFiles  = "segment" // of omnibus, in place of its ring
	vllmOmni      = "vllm-omni"
	channelsInGo  = "channels"
	protoactor    = "protoactor"
)

const (
	smallPayload = 64 // bytes
	stages       = 4  // of a pipeline in this process
)

// The numbers of messages and processes of rows.
const (
	manyInFlight    = 16
	fanOutProcesses = 8
	chainProcesses  = 3
	attachedToHost  = 10 // of rows about an idle host
)

// A row is a kind of work that omnibus and its peers do alternately, each in processes of its own.
type row struct {
	name       string
	unit       string
	contenders []contender // omnibus is the first
}

// A contender is a side of a row.
type contender struct {
	column string
	spec   peerSpec
}

// A way is a column with its carrier.
type way struct {
	column    string
	carrier   carrierName
	hostCalls bool // of a bus: the process that hosts it calls
	relayed   bool // a process between the two relays
}

var (
	byNodes      = way{column: ours, carrier: byBus}
	byHost       = way{column: ours, carrier: byBus, hostCalls: true}
	unixSockets  = way{column: socket, carrier: bySockets}
	unixRelayed  = way{column: socketRelayed, carrier: bySockets, relayed: true}
	callsOfGRPC  = way{column: grpcDirect, carrier: byGRPC}
	relayOfGRPC  = way{column: grpcRelayed, carrier: byGRPC, relayed: true}
	serverOfNATS = way{column: natsServer, carrier: byNATS}
)

// rowOf is the row of a kind of work, with a contender for each way.
func rowOf(name, unit string, work peerSpec, ways ...way) row {
	r := row{name: name, unit: unit}
	for _, w := range ways {
		spec := work.as(w.carrier)
		spec.HostCalls, spec.Relayed = w.hostCalls, w.relayed
		r.contenders = append(r.contenders, contender{w.column, spec})
	}
	return r
}

// peerRows lists the rows of the table, in their order. The package's documentation describes each.
func peerRows() []row {
	const micros = "µs"
	var rows []row
	add := func(name string, work peerSpec, ways ...way) { rows = append(rows, rowOf(name, micros, work, ways...)) }

	for _, caller := range []way{byNodes, byHost} {
		name := "request"
		if caller.hostCalls {
			name = "request/host-calls"
		}
		for _, flight := range []int{1, manyInFlight} {
			add(fmt.Sprintf("%s/%d-in-flight", name, flight), peerSpec{Pattern: roundTrip(smallPayload), Flight: flight},
				caller, unixSockets, unixRelayed, callsOfGRPC, relayOfGRPC, serverOfNATS)
		}
	}
	for _, size := range []int{smallPayload, 4 * kib, 64 * kib, mib} {
		add("stream/"+sizeName(size), peerSpec{Pattern: roundTrip(size)}, byNodes, unixSockets, callsOfGRPC, serverOfNATS)
	}
	add("stream/host-calls/"+sizeName(smallPayload), peerSpec{Pattern: roundTrip(smallPayload)}, byHost, unixSockets, callsOfGRPC, serverOfNATS)
	for _, size := range []int{smallPayload, mib} {
		add("one-way/"+sizeName(size), peerSpec{Pattern: oneWay(size)}, byNodes, unixSockets, callsOfGRPC, serverOfNATS)
	}
	add(fmt.Sprintf("fan-out/%s/to-%d", sizeName(mib), fanOutProcesses), peerSpec{Pattern: oneWay(mib), Fan: fanOutProcesses},
		byNodes, unixSockets, serverOfNATS)
	add(fmt.Sprintf("chain/%s/of-%d", sizeName(mib), chainProcesses), peerSpec{Pattern: roundTrip(mib), Chain: chainProcesses},
		byNodes, unixSockets, serverOfNATS)
	for _, size := range []int{4 * kib, mib} {
		add("python/"+sizeName(size), peerSpec{Pattern: roundTrip(size)},
			way{column: ours, carrier: byPythonPair}, way{column: zeroMQ, carrier: byZMQ}, way{column: pythonQueue, carrier: byQueue})
	}
	for _, size := range []int{4 * kib, mib} {
		add("value/"+sizeName(size), peerSpec{Pattern: roundTrip(size)},
			way{column: ours, carrier: byRing}, way{column: segmentFiles, carrier: bySegment}, way{column: vllmOmni, carrier: byVLLMOmni})
	}
	inProcess := []way{{column: ours, carrier: byLocalBus}, {column: channelsInGo, carrier: byChannels}, {column: protoactor, carrier: byActors}}
	add(fmt.Sprintf("in-process/stream/%d-stages", stages), peerSpec{Pattern: oneWay(smallPayload)}, inProcess...)
	add(fmt.Sprintf("in-process/requests/%d-stages", stages), peerSpec{Pattern: roundTrip(smallPayload), Flight: 1}, inProcess...)
	// The calling process is attached as well.
	idle := peerSpec{Pattern: oneWay(smallPayload), Fan: attachedToHost - 1, Gauge: ofMemory}
	rows = append(rows, rowOf(fmt.Sprintf("idle-memory/%d-attached", attachedToHost), "MiB", idle, byNodes, serverOfNATS))
	idle.Gauge = ofProcessor
	return append(rows, rowOf(fmt.Sprintf("idle-cpu/%d-attached", attachedToHost), "% of a core", idle, byNodes, serverOfNATS))
}

// Names lists the names of all rows of Run.
func Names() []string {
	var names []string
	for _, r := range peerRows() {
		names = append(names, r.name)
	}
	return names
}

// A gaugeName names the figure of an idle side.
type gaugeName string

const (
	ofMemory    gaugeName = "memory"    // of its host or server
	ofProcessor gaugeName = "processor" // of all its processes
)

// A gauge is a side whose figure is not the time of a message. It is read once in a round, during
// idleSlices slices.
type gauge interface {
	read(context.Context, time.Duration) (float64, error)
}

const idleSlices = 10

// Run does each kind of work by the bus and by its peers, alternately. The report has
// all complete rows also when there is an error.
func Run(ctx context.Context, opts Options) (report Table, err error) {
	report = Table{Machine: thisMachine(), Commit: commit(ctx), Busy: opts.Busy, Rows: []Row{}, Skipped: []Skip{}}
	if err := opts.Validate(); err != nil {
		return report, err
	}
	opts = opts.withDefaults()
	report.Rounds = opts.Rounds
	chosen := slices.DeleteFunc(peerRows(), func(r row) bool { return !matches(opts.Match, r.name) })
	if len(chosen) == 0 {
		return report, fmt.Errorf("%w %q", ErrNoMatch, opts.Match)
	}
	idle, err := compute(ctx, opts)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, idle()) }()
	for i, r := range chosen {
		opts.Progress(Progress{r.name, i + 1, len(chosen)})
		measured, skipped, err := r.measure(ctx, opts)
		report.Skipped = append(report.Skipped, skipped...)
		if err != nil {
			return report, fmt.Errorf("%s: %w", r.name, err)
		}
		if len(measured.Cells) > 0 {
			report.Rows = append(report.Rows, measured)
		}
	}
	return report, nil
}

func matches(match *regexp.Regexp, name string) bool { return match == nil || match.MatchString(name) }

// A runner is a contender that is set up.
type runner struct {
	column  string
	side    side
	every   int // messages of a repetition
	repeat  int // repetitions of a slice
	figures []float64
}

// measure sets all contenders of a row up, and runs the rounds.
func (r row) measure(ctx context.Context, opts Options) (measured Row, skipped []Skip, err error) {
	measured = Row{Name: r.name, Unit: r.unit}
	var runners []*runner
	defer func() {
		for _, each := range runners {
			err = errors.Join(err, each.side.close(context.WithoutCancel(ctx)))
		}
	}()
	for _, c := range r.contenders {
		s, err := openSide(ctx, opts, c.spec)
		if errors.Is(err, errors.ErrUnsupported) {
			skipped = append(skipped, Skip{r.name + " by " + c.column, err.Error()})
			continue
		}
		if err != nil {
			return measured, skipped, fmt.Errorf("%s: %w", c.column, err)
		}
		each := &runner{column: c.column, side: s, every: c.spec.Pattern.Every}
		runners = append(runners, each)
		if err := each.calibrate(ctx, opts.Slice); err != nil {
			return measured, skipped, fmt.Errorf("%s: %w", c.column, err)
		}
	}
	for round := range opts.Rounds {
		for _, i := range roundOrder(len(runners), round) {
			if err := ctx.Err(); err != nil {
				return measured, skipped, err
			}
			if err := runners[i].slice(ctx, opts.Slice); err != nil {
				return measured, skipped, fmt.Errorf("%s: %w", runners[i].column, err)
			}
		}
	}
	for _, each := range runners {
		measured.Cells = append(measured.Cells, cellOf(each.column, each.figures, runners[0]))
	}
	return measured, skipped, nil
}

// roundOrder is the order in which n sides run in a round. In 2n rounds each side follows every
// other equally often: the state of processors and threads that the side before leaves makes a
// difference of a tenth to a side that sleeps.
func roundOrder(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i / 2 // 0, n-1, 1, n-2, ...: a row of a Williams square, and the others are this one shifted
		if i%2 == 1 {
			order[i] = n - 1 - i/2
		}
		order[i] = (order[i] + round/2) % n
	}
	if round%2 == 1 {
		slices.Reverse(order)
	}
	return order
}

// warmUpPart gives the repetitions before a slice that do not count, as a fraction 1/warmUpPart of
// it: after the pause both processes have to be scheduled again.
const warmUpPart = 8

// calibrate finds how many repetitions make a slice.
func (r *runner) calibrate(ctx context.Context, slice time.Duration) error {
	const most = 1 << 22
	if _, ok := r.side.(gauge); ok {
		return nil
	}
	for r.repeat = 1; ; {
		took, err := r.side.run(ctx, r.repeat)
		if err != nil {
			return err
		}
		next := int(float64(r.repeat) * float64(slice) / float64(max(took, time.Microsecond)))
		if took >= slice/4 || r.repeat >= most {
			r.repeat = min(max(next, 1), most)
			return nil
		}
		// The first repetitions are slower than the others.
		r.repeat = min(max(next, 2*r.repeat), 8*r.repeat, most)
	}
}

// slice runs the side once, and records the time of a message.
func (r *runner) slice(ctx context.Context, slice time.Duration) error {
	if g, ok := r.side.(gauge); ok {
		figure, err := g.read(ctx, idleSlices*slice)
		r.figures = append(r.figures, figure)
		return err
	}
	runtime.GC()
	if n := r.repeat / warmUpPart; n > 0 {
		if _, err := r.side.run(ctx, n); err != nil {
			return err
		}
	}
	took, err := r.side.run(ctx, r.repeat)
	r.figures = append(r.figures, microsPer(took, r.repeat*r.every))
	return err
}
