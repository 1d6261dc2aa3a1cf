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

	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// laneCapacity is the size of a lane in each direction.
const laneCapacity = 64 * kib

// laneFiles is what a peer needs for two lanes, in the order of its
// descriptors: the parent's segments of the lane to the peer and of the one back,
// and the peer's likewise, then its end of a socket.
const laneFiles = 5

// A laneCarrier is a lane in each direction, and a socket, on which a side sleeps
// as in package internal/peer. Payloads travel in the frames.
type laneCarrier struct {
	sender   *lane.Sender
	receiver *lane.Receiver
	socket   net.Conn
	woken    [cacheLine]byte
	polls    bool
	over     atomic.Bool // the other side is gone
	segments [4][]byte
}

// The order of laneCarrier.segments: the outgoing lane, the incoming one.
const (
	outFrames = iota
	outHead
	inFrames
	inHead
)

func laneGeometry() lane.Geometry {
	geo, err := lane.Layout(1, laneCapacity)
	if err != nil {
		panic(err) // the capacity is a constant
	}
	return geo
}

// laneWaitings are the ways to wait, by their names in waitings.
var laneWaitings = map[string]lane.Waiting{
	"parked": lane.Parked, "ladder": lane.Ladder, "spinning": lane.Polling,
}

// makeLanes is the parent's part: it makes all memory and the socket. The files
// are the peer's, in the order of their numbers, and the caller's to close.
func makeLanes(waiting string) (l *laneCarrier, files []*os.File, err error) {
	l = &laneCarrier{}
	defer func() {
		if err != nil {
			closeFiles(files)
			err = errors.Join(err, l.close())
		}
	}()
	geo := laneGeometry()
	for i := range l.segments {
		f, err := newMemory(segmentBytes(geo, i))
		if err != nil {
			return l, files, err
		}
		files = append(files, f)
		if l.segments[i], err = mapMemory(int(f.Fd()), segmentBytes(geo, i), true); err != nil {
			return l, files, err
		}
	}
	geo.FormatSender(l.segments[outFrames])
	geo.FormatReceiver(l.segments[outHead])
	geo.FormatSender(l.segments[inFrames])
	geo.FormatReceiver(l.segments[inHead])
	socket, theirs, err := socketPair(unix.SOCK_SEQPACKET)
	if err != nil {
		return l, files, err
	}
	l.socket, files = socket, append(files, theirs)
	err = l.begin(geo, waiting)
	return l, files, err
}

// openLanes is the peer's part: it maps what the parent made.
func openLanes(waiting string, first int) (l *laneCarrier, err error) {
	l = &laneCarrier{}
	geo := laneGeometry()
	// The parent's way out is the peer's way in.
	for i, at := range []int{inFrames, inHead, outFrames, outHead} {
		ours := at == outFrames || at == inHead
		if l.segments[at], err = mapMemory(first+i, segmentBytes(geo, at), ours); err != nil {
			return nil, err
		}
	}
	if l.socket, err = fileConn(first + len(l.segments)); err != nil {
		return nil, err
	}
	err = l.begin(geo, waiting)
	return l, err
}

func (l *laneCarrier) begin(geo lane.Geometry, waiting string) (err error) {
	w, ok := laneWaitings[waiting]
	if !ok {
		return fmt.Errorf("no lane waits by %q", waiting)
	}
	l.polls = w == lane.Polling
	if l.sender, err = lane.NewSender(geo, l.segments[outFrames], l.segments[outHead], l.wake); err != nil {
		return err
	}
	l.receiver, err = lane.NewReceiver(geo, l.segments[inHead], l.segments[inFrames], lane.Options{Waiting: w})
	return err
}

// wake wakes the other side. Of one that is gone, the next wait tells.
func (l *laneCarrier) wake() { _, _ = l.socket.Write([]byte{1}) }

// The kinds of frames.
const (
	framePayload lane.Kind = iota
	frameHandle
)

func (l *laneCarrier) send(payload []byte) error { return l.sendFrame(framePayload, payload) }

// sendFrame sends a frame as soon as there is room. The other side is awake until then, or dead.
func (l *laneCarrier) sendFrame(kind lane.Kind, payload []byte) error {
	for {
		err := l.sender.TrySend(kind, payload)
		if !errors.Is(err, lane.ErrFull) {
			return err
		}
		if l.over.Load() {
			return net.ErrClosed
		}
		runtime.Gosched()
	}
}

func (l *laneCarrier) receive(sizeBytes int) error {
	frame, _, err := l.next()
	if err != nil {
		return err
	}
	if len(frame) != sizeBytes {
		return fmt.Errorf("a frame of %d bytes instead of %d", len(frame), sizeBytes)
	}
	err = touchAll(frame)
	l.receiver.Advance()
	return err
}

// next waits for a frame.
func (l *laneCarrier) next() ([]byte, lane.Kind, error) {
	for {
		frame, kind, ok := l.receiver.Next()
		if err := l.receiver.Err(); ok || err != nil {
			return frame, kind, err
		}
		if l.receiver.Look(l.over.Load) || l.polls && !l.over.Load() || !l.receiver.Doze() {
			continue
		}
		start := time.Now()
		_, err := l.socket.Read(l.woken[:])
		l.receiver.Rouse()
		l.receiver.Slept(time.Since(start))
		if err != nil {
			return nil, 0, err
		}
	}
}

func (l *laneCarrier) fail(error) {
	l.over.Store(true)
	_ = l.socket.Close() // ends a wait
}

func (l *laneCarrier) close() error {
	var errs []error
	if l.socket != nil {
		if err := l.socket.Close(); !errors.Is(err, net.ErrClosed) { // it may have failed before
			errs = append(errs, err)
		}
	}
	for _, s := range l.segments {
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
		_ = f.Close() // there is nothing in it
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

func closeFiles(files []*os.File) {
	for _, f := range files {
		_ = f.Close()
	}
}
