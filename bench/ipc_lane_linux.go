package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// laneCapacity is the size of a lane in each direction.
const laneCapacity = 64 * kib

// laneFiles is what a peer needs for two lanes, in the order of its
// descriptors: the parent's segments of the lane to the peer and of the one back,
// and the peer's likewise, then an event of each.
const laneFiles = 6

// A laneCarrier is a lane in each direction. Payloads travel in the frames.
type laneCarrier struct {
	sender   *lane.Sender
	receiver *lane.Receiver
	events   lane.Events
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

func laneWaiting(name string) (lane.Options, error) {
	for _, w := range []lane.Waiting{lane.Parked, lane.Ladder, lane.Spinning} {
		if w.String() == name {
			return lane.Options{Waiting: w}, nil
		}
	}
	return lane.Options{}, fmt.Errorf("no lane waits by %q", name)
}

// makeLanes is the parent's part: it makes all memory and both events. The files
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
	for _, e := range []**lane.Event{&l.events.Own, &l.events.Peer} {
		if *e, err = lane.NewEvent(); err != nil {
			return l, files, err
		}
		fd, err := unix.FcntlInt(uintptr((*e).FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return l, files, err
		}
		files = append(files, os.NewFile(uintptr(fd), "event"))
	}
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
	if l.events.Peer, err = lane.OpenEvent(first + 4); err != nil {
		return nil, err
	}
	if l.events.Own, err = lane.OpenEvent(first + 5); err != nil {
		return nil, err
	}
	err = l.begin(geo, waiting)
	return l, err
}

func (l *laneCarrier) begin(geo lane.Geometry, waiting string) error {
	opts, err := laneWaiting(waiting)
	if err != nil {
		return err
	}
	if l.sender, err = lane.NewSender(geo, l.segments[outFrames], l.segments[outHead], l.events, opts); err != nil {
		return err
	}
	l.receiver, err = lane.NewReceiver(geo, l.segments[inHead], l.segments[inFrames], l.events, opts)
	return err
}

// started makes the events what they were: package exec has files that it
// passes on block, in both processes.
func (l *laneCarrier) started() error {
	return errors.Join(unix.SetNonblock(l.events.Own.FD(), true), unix.SetNonblock(l.events.Peer.FD(), true))
}

// The kinds of frames.
const (
	framePayload lane.Kind = iota
	frameHandle
)

func (l *laneCarrier) send(payload []byte) error {
	return l.sender.Send(context.Background(), framePayload, payload)
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
	frame, kind, ok := l.receiver.Next()
	for !ok {
		if err := l.receiver.Wait(context.Background()); err != nil {
			return nil, 0, err
		}
		frame, kind, ok = l.receiver.Next()
	}
	return frame, kind, nil
}

func (l *laneCarrier) fail(err error) {
	l.sender.Fail(err)
	l.receiver.Fail(err)
}

func (l *laneCarrier) close() error {
	var errs []error
	for _, e := range []*lane.Event{l.events.Own, l.events.Peer} {
		if e != nil {
			errs = append(errs, e.Close())
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
