package bench

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// laneCapacity is the size of a lane in each direction.
const laneCapacity = 64 * kib

// A gpuChannel is one end of a channel of handles between two processes: a lane in each
// direction, a socket on which a side sleeps, as in package internal/peer, and a store with the
// other process as its reader.
type gpuChannel struct {
	out      *lane.Sender
	receiver *lane.Receiver
	segments [4][]byte
	socket   net.Conn
	woken    [64]byte
	polls    bool
	peerGone atomic.Bool // the other process has ended

	conn    *net.UnixConn // on which the stores are exchanged
	store   *shmstore.Store
	id      shmstore.ReaderID
	readers shmstore.ReaderSet // the other process
	reader  *shmstore.Reader   // of its store
	frame   [messages.HandleSize]byte
}

// The order of gpuChannel.segments: the outgoing lane, the incoming one.
const (
	outFrames = iota
	outHead
	inFrames
	inHead
)

// The kinds of frames.
const (
	framePayload lane.Kind = iota
	frameHandle
)

func laneGeometry() lane.Geometry {
	geo, err := lane.Layout(1, laneCapacity)
	if err != nil {
		panic(err) // the capacity is a constant
	}
	return geo
}

// laneWaitings are the ways in which a side of a lane waits.
var laneWaitings = map[string]lane.Waiting{
	"parked": lane.Parked, "ladder": lane.Ladder, "spinning": lane.Polling,
}

// makeGPUChannel makes all memory and the sockets, in the process that starts the other. The files
// are for the other process, in the order of their numbers; the caller closes them. The caller
// closes the channel also after an error.
func makeGPUChannel(spec peerSpec) (c *gpuChannel, files []*os.File, err error) {
	c = &gpuChannel{}
	geo := laneGeometry()
	for i := range c.segments {
		f, err := newMemory(segmentBytes(geo, i))
		if err != nil {
			return c, files, err
		}
		files = append(files, f)
		if c.segments[i], err = mapMemory(int(f.Fd()), segmentBytes(geo, i), true); err != nil {
			return c, files, err
		}
	}
	geo.FormatSender(c.segments[outFrames])
	geo.FormatReceiver(c.segments[outHead])
	geo.FormatSender(c.segments[inFrames])
	geo.FormatReceiver(c.segments[inHead])
	for _, ours := range []func(net.Conn){
		func(conn net.Conn) { c.socket = conn },
		func(conn net.Conn) { c.conn = conn.(*net.UnixConn) },
	} {
		conn, theirs, err := socketPair(unix.SOCK_SEQPACKET)
		if err != nil {
			return c, files, err
		}
		ours(conn)
		files = append(files, theirs)
	}
	return c, files, errors.Join(c.openLanes(geo, spec.GPU.Waiting), c.makeStore(spec.Pattern))
}

// openGPUChannel opens the channel in the other process: it maps the memory of the inherited files,
// and makes a store of its own, which stays empty.
func openGPUChannel(spec peerSpec) (*gpuChannel, error) {
	c := &gpuChannel{}
	geo := laneGeometry()
	// The outgoing lane of one process is the incoming one of the other.
	for i, at := range []int{inFrames, inHead, outFrames, outHead} {
		var err error
		ours := at == outFrames || at == inHead
		if c.segments[at], err = mapMemory(firstFile+i, segmentBytes(geo, at), ours); err != nil {
			return nil, err
		}
	}
	var err error
	if c.socket, err = fileConn(firstFile + len(c.segments)); err != nil {
		return nil, err
	}
	conn, err := fileConn(firstFile + len(c.segments) + 1)
	if err != nil {
		return nil, err
	}
	c.conn = conn.(*net.UnixConn)
	spec.Pattern.Size = 1
	return c, errors.Join(c.openLanes(geo, spec.GPU.Waiting), c.makeStore(spec.Pattern))
}

func (c *gpuChannel) openLanes(geo lane.Geometry, waiting string) (err error) {
	w, ok := laneWaitings[waiting]
	if !ok {
		return fmt.Errorf("no lane waits by %q", waiting)
	}
	c.polls = w == lane.Polling
	if c.out, err = lane.NewSender(geo, c.segments[outFrames], c.segments[outHead], c.wake); err != nil {
		return err
	}
	c.receiver, err = lane.NewReceiver(geo, c.segments[inHead], c.segments[inFrames], lane.Options{Waiting: w})
	return err
}

// makeStore makes a store with at least as many slots as handles fit into a lane.
func (c *gpuChannel) makeStore(p pattern) (err error) {
	arena := gpuStoreBytes(p.Size, p.Every)
	c.store, err = shmstore.Create(shmstore.Options{
		ArenaBytes:     arena,
		MaxObjectBytes: max(int64(p.Size), arena/4),
		Slots:          max(laneCapacity/messages.HandleSize, int(arena/mib)),
		Memory:         shmstore.Shared,
		Reuse:          true, // as in a bus
	})
	return err
}

// attach attaches each process to the store of the other. The process that has started the other
// admits first.
func (c *gpuChannel) attach(admitsFirst bool) (err error) {
	steps := []func() error{
		func() error { c.id, err = c.store.Admit(c.conn); return err },
		func() error { c.reader, err = shmstore.Attach(c.conn); return err },
	}
	if !admitsFirst {
		steps[0], steps[1] = steps[1], steps[0]
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	c.readers = shmstore.Readers(c.id)
	return nil
}

// wake wakes the other process. If that has ended, the next wait returns an error.
func (c *gpuChannel) wake() { _, _ = c.socket.Write([]byte{1}) }

// sendFrame sends a frame as soon as the lane has space. Until then the other process is awake, or dead.
func (c *gpuChannel) sendFrame(kind lane.Kind, payload []byte) error {
	for {
		err := c.out.TrySend(kind, payload)
		if !errors.Is(err, lane.ErrFull) {
			return err
		}
		if c.peerGone.Load() {
			return net.ErrClosed
		}
		runtime.Gosched()
	}
}

// next waits for a frame.
func (c *gpuChannel) next() ([]byte, lane.Kind, error) {
	for {
		frame, kind, ok := c.receiver.Next()
		if err := c.receiver.Err(); ok || err != nil {
			return frame, kind, err
		}
		if c.receiver.Poll(c.peerGone.Load) || c.polls && !c.peerGone.Load() || !c.receiver.PrepareSleep() {
			continue
		}
		start := time.Now()
		_, err := c.socket.Read(c.woken[:])
		c.receiver.EndSleep()
		c.receiver.RecordSleep(time.Since(start))
		if err != nil {
			return nil, 0, err
		}
	}
}

// fail ends current and later calls with an error. It is safe for concurrent use.
func (c *gpuChannel) fail(error) {
	c.peerGone.Store(true)
	_ = c.socket.Close() // wakes next
}

func (c *gpuChannel) close() error {
	var errs []error
	if c.reader != nil {
		errs = append(errs, c.reader.Close())
	}
	if c.store != nil {
		errs = append(errs, c.store.Close())
	}
	if c.conn != nil {
		errs = append(errs, c.conn.Close())
	}
	if c.socket != nil {
		if err := c.socket.Close(); !errors.Is(err, net.ErrClosed) { // fail may have closed it
			errs = append(errs, err)
		}
	}
	for _, s := range c.segments {
		if s != nil {
			errs = append(errs, unix.Munmap(s))
		}
	}
	return errors.Join(errs...)
}

func segmentBytes(geo lane.Geometry, segment int) int {
	if segment == outFrames || segment == inFrames {
		return geo.SenderBytes()
	}
	return geo.ReceiverBytes()
}

func newMemory(sizeBytes int) (*os.File, error) {
	fd, err := unix.MemfdCreate("bench-lane", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	f := os.NewFile(uintptr(fd), "bench-lane")
	if err := f.Truncate(int64(sizeBytes)); err != nil {
		_ = f.Close() // it is empty
		return nil, err
	}
	return f, nil
}

func mapMemory(fd, sizeBytes int, writable bool) ([]byte, error) {
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	m, err := unix.Mmap(fd, 0, sizeBytes, prot, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of a lane: %w", sizeBytes, err)
	}
	return m, nil
}

// pin keeps the goroutine on the n-th of the processors that the process may use,
// if there are so many. Two sides that spin on the same processor only keep each
// other from working.
func pin(n int) (unpin func(), err error) {
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return nil, fmt.Errorf("find the processors: %w", err)
	}
	if n >= all.Count() {
		return func() {}, nil
	}
	for cpu := 0; ; cpu++ {
		if all.IsSet(cpu) {
			if n == 0 {
				one.Set(cpu)
				break
			}
			n--
		}
	}
	runtime.LockOSThread()
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		runtime.UnlockOSThread()
		return nil, fmt.Errorf("choose a processor: %w", err)
	}
	return func() {
		_ = unix.SchedSetaffinity(0, &all)
		runtime.UnlockOSThread()
	}, nil
}
