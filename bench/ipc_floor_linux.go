package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
)

// A floorCarrier is the least that two processes do to hand over a payload in
// shared memory: one copies it to where the other reads it, and says so by a flag
// that the other spins on, or by an event that it parks on. There is no protocol:
// nothing is checked, and nothing is given back. Each payload lies where the last
// one did, which only the answer says is free, so it is for round trips alone. What
// ours takes above it is what the lane and the store cost.
type floorCarrier struct {
	out, in   floorRegion
	spins     bool
	own, peer int         // eventfds, whose counts are payloads
	failed    atomic.Bool // nothing more comes
}

// A floorRegion is what one side writes: a page with a flag, and then a payload.
type floorRegion struct {
	memory []byte
	flag   *atomic.Uint64 // how many payloads were sent, so far
	used   uint64         // how many payloads this side has sent or received
}

const (
	floorPage  = 4096
	floorLooks = 1 << 10 // at a flag between yields, as a lane that spins
)

// mapFloorRegion maps the region in which payloads of a size are sent. One side
// alone writes to it.
func mapFloorRegion(fd, sizeBytes int, ours bool) (r floorRegion, err error) {
	if r.memory, err = mapMemory(fd, floorPage+sizeBytes, ours); err == nil {
		r.flag = flagOf(r.memory)
	}
	return r, err
}

// next is the place of the next payload.
func (r *floorRegion) next(sizeBytes int) []byte {
	r.used++
	return r.memory[floorPage:][:sizeBytes]
}

// openFloorSide makes all memory and both events, and starts the peer.
func openFloorSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	c, files, err := makeFloor(spec)
	defer func() { closeFiles(files) }()
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	p, err := startPeer(ctx, opts, spec, files)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	return newCarried(c, p, spec), nil
}

// makeFloor is the parent's part. The files are the peer's, in the order of their
// numbers: both regions, and an event of each.
func makeFloor(spec peerSpec) (c *floorCarrier, files []*os.File, err error) {
	c = &floorCarrier{spins: spec.spins(), own: -1, peer: -1}
	p := spec.Pattern
	for i, sizeBytes := range []int{p.Size, p.Answer} {
		f, err := newMemory(floorPage + sizeBytes)
		if err != nil {
			return c, files, err
		}
		files = append(files, f)
		region := []*floorRegion{&c.out, &c.in}[i]
		if *region, err = mapFloorRegion(int(f.Fd()), sizeBytes, region == &c.out); err != nil {
			return c, files, err
		}
	}
	for _, e := range []*int{&c.own, &c.peer} {
		if *e, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_SEMAPHORE); err != nil {
			return c, files, fmt.Errorf("eventfd: %w", err)
		}
		fd, err := unix.FcntlInt(uintptr(*e), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			return c, files, err
		}
		files = append(files, os.NewFile(uintptr(fd), "event"))
	}
	return c, files, nil
}

// openFloor is the peer's part: it maps what the parent made.
func openFloor(spec peerSpec, first int) (c *floorCarrier, err error) {
	c = &floorCarrier{spins: spec.spins(), peer: first + 2, own: first + 3}
	if c.in, err = mapFloorRegion(first, spec.Pattern.Size, false); err != nil {
		return nil, err
	}
	c.out, err = mapFloorRegion(first+1, spec.Pattern.Answer, true)
	return c, err
}

func (c *floorCarrier) send(payload []byte) error {
	codec.Copy(c.out.next(len(payload)), payload)
	c.out.flag.Store(c.out.used)
	if c.spins {
		return nil
	}
	return signalEvent(c.peer)
}

func (c *floorCarrier) receive(sizeBytes int) error {
	wait := c.park
	if c.spins {
		wait = c.spin
	}
	if err := wait(); err != nil {
		return err
	}
	return touchAll(c.in.next(sizeBytes))
}

// spin waits for the flag to move, as a lane does that spins.
func (c *floorCarrier) spin() error {
	for !c.failed.Load() {
		for range floorLooks {
			if c.in.flag.Load() != c.in.used {
				return nil
			}
		}
		_, _, _ = unix.Syscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
	}
	return errPeerDied
}

// park waits for an event for each payload. It blocks a thread, which costs
// less than parking a goroutine.
func (c *floorCarrier) park() error {
	var count [8]byte
	for {
		_, err := unix.Read(c.own, count[:])
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fmt.Errorf("wait for an event: %w", err)
		case c.failed.Load():
			return errPeerDied
		default:
			return nil
		}
	}
}

// signalEvent wakes whoever waits for an event.
func signalEvent(fd int) error {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	_, err := unix.Write(fd, one[:])
	return err
}

func (c *floorCarrier) fail(error) {
	c.failed.Store(true)
	_ = signalEvent(c.own) // which is as open as the carrier
}

func (c *floorCarrier) close() error {
	var errs []error
	for _, r := range []floorRegion{c.out, c.in} {
		if r.memory != nil {
			errs = append(errs, unix.Munmap(r.memory))
		}
	}
	for _, fd := range []int{c.own, c.peer} {
		if fd >= 0 {
			errs = append(errs, unix.Close(fd))
		}
	}
	return errors.Join(errs...)
}
