package bench

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// gpuUsage counts resources of processes with a GPU that must not grow.
type gpuUsage [usageKinds]int64

// The resources that are counted.
const (
	usedDescriptors = iota
	usedSegments    // shared mappings
	usedStreams     // as the driver counts them
	usedEvents      // likewise
	usedPieces      // chunks of the pool in use
	usedOnGPU       // bytes in use on the whole GPU, as the driver reports them
	usedHeap        // bytes of Go's heap and stacks
	usedMemory      // resident bytes, including shared mappings
	usageKinds
)

const usageBytes = 8 * usageKinds

func (u gpuUsage) plus(v gpuUsage) gpuUsage {
	for i := range u {
		u[i] += v[i]
	}
	return u
}

func (u gpuUsage) minus(v gpuUsage) gpuUsage {
	for i := range u {
		u[i] -= v[i]
	}
	return u
}

// usage returns the resources of both processes, when no tensor is in flight.
func (p *gpuPair) usage(ctx context.Context) (gpuUsage, error) {
	if err := p.publish(ctx, map[string]any{"do": doCount}, gpulane.Default, p.readers); err != nil {
		return gpuUsage{}, err
	}
	theirs, err := p.awaitUsage()
	if err != nil {
		return gpuUsage{}, err
	}
	own, err := p.count(ctx)
	return own.plus(theirs), err
}

// count waits until no tensor is in flight, and counts the resources of this process.
func (g *gpuEnd) count(ctx context.Context) (u gpuUsage, err error) {
	if err := g.awaitIdle(ctx); err != nil {
		return u, err
	}
	if g.sender != nil {
		for _, dev := range g.sender.Devices() {
			g.store.FreeUnusedOn(dev)
			u[usedPieces] += int64(dev.Pieces())
		}
	}
	caps, err := g.driver.Probe(ctx)
	if err != nil {
		return u, err
	}
	u[usedOnGPU] = caps[0].TotalBytes - caps[0].FreeBytes
	driver := g.driver.Usage()
	u[usedStreams], u[usedEvents] = int64(driver.Streams), int64(driver.Events)
	if u[usedDescriptors], u[usedSegments], err = countOpen(); err != nil {
		return u, err
	}
	// Twice, because a pool gives its contents up in two steps.
	debug.FreeOSMemory()
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	u[usedHeap] = int64(m.HeapInuse + m.StackInuse)
	u[usedMemory], err = resident()
	return u, err
}

// awaitIdle waits until the stream is done, and every received message is settled.
func (g *gpuEnd) awaitIdle(ctx context.Context) error {
	if err := g.stream.Synchronize(ctx); err != nil {
		return err
	}
	for start := time.Now(); ; runtime.Gosched() { // the lane's watcher is about to settle them
		open := g.lane.Stats().Open
		if open == 0 {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if time.Since(start) > fullTimeout {
			return fmt.Errorf("%d tensors that were received are not settled", open)
		}
	}
}

// countOpen counts the descriptors of this process, and its shared mappings.
func countOpen() (descriptors, segments int64, err error) {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0, 0, err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(maps) {
		fields := bytes.Fields(line)
		const access, shared = 1, 3 // the column of the access rights, and the index of the letter s in it
		if len(fields) > access && len(fields[access]) > shared && fields[access][shared] == 's' {
			segments++
		}
	}
	return int64(len(files)), segments, nil
}

// resident is the memory of this process, in bytes.
func resident() (int64, error) {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(statm))
	if len(fields) < 2 {
		return 0, fmt.Errorf("%q is not the form of statm", statm)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize()), err
}

// sendUsage sends the counts to the other process.
func (g *gpuEnd) sendUsage(u gpuUsage) error {
	b, err := binary.Append(nil, binary.LittleEndian, u[:])
	if err != nil {
		return err
	}
	return g.sendFrame(framePayload, b)
}

func (g *gpuEnd) awaitUsage() (u gpuUsage, err error) {
	frame, _, err := g.next()
	if err != nil {
		return u, err
	}
	if len(frame) != usageBytes {
		return u, fmt.Errorf("counts of %d bytes", len(frame))
	}
	_, err = binary.Decode(frame, binary.LittleEndian, u[:])
	g.receiver.Advance()
	return u, err
}

// gpuLeases sends many small tensors, and counts the resources that they leave in both processes.
type gpuLeases struct {
	*gpuPair
	leases            int
	gate              cudaipc.HostMemory // a word that the stream waits for in sendAllAtOnce
	crowds            uint32
	beforeSecondCount func(*gpuPair) error // called between the two counts; for a test
}

func openGPULeases(ctx context.Context, opts Options, leases int) (trial, error) {
	p, err := openGPUPair(ctx, opts, peerSpec{
		Carrier: byGPU, Pattern: pattern{Size: bundleBytes, Every: leasesFlight},
		GPU: &gpuSpec{Waiting: "ladder", Driver: opts.Driver, TensorBytes: latencyBytes, PoolBytes: 4 * mib},
	})
	if err != nil {
		return nil, err
	}
	_, gate, err := p.pinned(gpuPage)
	if err != nil {
		return nil, errors.Join(err, p.close(context.WithoutCancel(ctx)))
	}
	return &gpuLeases{gpuPair: p, leases: leases, gate: gate}, nil
}

func (l *gpuLeases) round(ctx context.Context, _ bool) ([]sample, error) {
	s, err := l.grown(ctx)
	if err != nil {
		return nil, l.explained(err)
	}
	return s, nil
}

func (l *gpuLeases) grown(ctx context.Context) ([]sample, error) {
	// Use every slot of the pool and of the store, and the largest number of streams and
	// events, before the first count.
	if _, err := l.send(ctx, leasesWarmUp, leasesTime); err != nil {
		return nil, err
	}
	if err := l.sendAllAtOnce(ctx); err != nil {
		return nil, err
	}
	before, err := l.usage(ctx)
	if err != nil {
		return nil, err
	}
	start := time.Now()
	sent, err := l.send(ctx, l.leases, leasesTime)
	took := time.Since(start)
	if err == nil && l.beforeSecondCount != nil {
		err = l.beforeSecondCount(l.gpuPair)
	}
	if err != nil {
		return nil, err
	}
	after, err := l.usage(ctx)
	if err != nil {
		return nil, err
	}
	samples := []sample{{ours: float64(sent)}, {ours: microsPer(took, sent)}}
	grown := after.minus(before)
	for i, unit := range usageUnits {
		samples = append(samples, sample{ours: float64(grown[i]) / unit})
	}
	return samples, nil
}

// usageUnits are the units of the figures.
var usageUnits = [usageKinds]float64{1, 1, 1, 1, 1, mib, kib, mib}

// sendAllAtOnce has a whole flight of tensors in flight at once: no tensor is complete before
// the other process waits for all of them.
func (l *gpuLeases) sendAllAtOnce(ctx context.Context) error {
	gate := l.gate.Word(0)
	l.crowds++
	if err := l.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWait, Word: gate, Value: l.crowds}); err != nil {
		return err
	}
	err := l.flight(ctx, doQueue)
	if err == nil {
		_, err = l.awaitAnswer()
	}
	gate.Host.Store(l.crowds)
	return errors.Join(err, l.stream.Synchronize(ctx))
}

// flight sends leasesFlight tensors.
func (l *gpuLeases) flight(ctx context.Context, do string) error {
	for i := range leasesFlight {
		v := map[string]any{"do": do, "x": l.tensor(), "last": i == leasesFlight-1}
		if err := l.publish(ctx, v, gpulane.Pool, l.readers); err != nil {
			return err
		}
	}
	return nil
}

// send sends n tensors, or as many as it can within a time.
func (l *gpuLeases) send(ctx context.Context, n int, within time.Duration) (sent int, err error) {
	for start := time.Now(); sent < n && time.Since(start) < within; {
		if err := l.flight(ctx, doView); err != nil {
			return sent, err
		}
		a, err := l.awaitAnswer()
		if err = errors.Join(err, ctx.Err()); err != nil {
			return sent, err
		}
		if a.wrong {
			return sent, errors.New("a tensor arrived with wrong bytes")
		}
		sent += leasesFlight
	}
	return sent, nil
}
