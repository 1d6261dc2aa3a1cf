package posix

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// reader is another process's side of a store, in one of its places. None of it changes
// once it is attached.
type reader struct {
	head   head
	record record
	place  int // from 1 on
	store  *shmstore.Reader
	cells  mapping
	index  index
	all    []marks
	own    *marks // of those, where this process writes
	room   int    // the creator's bell
	life

	claiming sync.Mutex // one lock of a slot at a time: they all are of one description
}

// attach opens the store, in the first place that is free. That there is no store, or
// none whose creator lives, is errNone.
func attach(f files) (*reader, error) {
	h, err := f.openHead()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNone
	}
	if err != nil {
		return nil, err
	}
	r := &reader{head: h, room: -1}
	r.end = r.release
	if err := r.open(f); err != nil {
		r.finish()
		return nil, err
	}
	faultpoint.Hit("posix-attached")
	return r, nil
}

func (r *reader) open(f files) (err error) {
	if !r.alive() {
		return errNone
	}
	if r.record, err = r.head.read(); err != nil {
		return err
	}
	if err := r.takePlace(f); err != nil {
		return err
	}
	faultpoint.Hit("posix-place-locked")
	if err = r.openParts(f); errors.Is(err, fs.ErrNotExist) || !r.alive() {
		return errNone // it ends at this moment
	}
	return err
}

// takePlace locks the first place that is free. The creator locks one for a moment to
// see whether its reader has died, so one look is not enough.
func (r *reader) takePlace(f files) error {
	err := await(context.Background(), placePatience, func() (bool, error) {
		for place := 1; place <= int(r.record.readers); place++ {
			if free, err := r.head.tryLock(int64(place)); free || err != nil {
				r.place = place
				return free, err
			}
		}
		return false, nil
	})
	if errors.Is(err, errLate) {
		return r.crowded(f)
	}
	return err
}

// crowded says who has the places.
func (r *reader) crowded(f files) error {
	var who []string
	for place := 1; place <= int(r.record.readers); place++ {
		m, err := f.openMarks(place, int(r.record.slots), unix.PROT_READ)
		if err != nil {
			continue
		}
		who = append(who, strconv.FormatUint(m.pid.Load(), 10))
		m.release()
	}
	return fmt.Errorf("%w: all %d places for readers are taken, by the processes %s: raise readers where the store is created, or end one",
		connector.ErrBusy, r.record.readers, strings.Join(who, ", "))
}

// openParts opens all files but the first. As long as the creator lives they are its
// own.
func (r *reader) openParts(f files) error {
	slots := int(r.record.slots)
	if err := r.openStore(f); err != nil {
		return err
	}
	var err error
	if r.cells, err = f.openMapping(fileIndex, indexCells(slots)*cellBytes, unix.PROT_READ); err != nil {
		return err
	}
	r.index = wordsOf(r.cells.data)
	for place := 1; place <= int(r.record.readers); place++ {
		protection := unix.PROT_READ
		if place == r.place {
			protection |= unix.PROT_WRITE
		}
		m, err := f.openMarks(place, slots, protection)
		if err != nil {
			return err
		}
		r.all = append(r.all, m)
	}
	if r.room, err = f.open(f.name(fileRoom), unix.O_WRONLY); err != nil {
		return err
	}
	r.own = &r.all[r.place-1]
	r.own.waiting.Store(0)
	r.own.pid.Store(uint64(os.Getpid())) //nolint:gosec // it is positive
	r.store.OnRoom(func() { _, _ = unix.Pwrite(r.room, []byte{1}, 0) })
	return nil
}

// openStore opens what package shmstore reads.
func (r *reader) openStore(f files) error {
	var fds []int
	for _, part := range []struct {
		name string
		how  int
	}{{fileArena, unix.O_RDONLY}, {fileDirectory, unix.O_RDONLY}, {fileLedger + strconv.Itoa(r.place), unix.O_RDWR}} {
		fd, err := f.open(f.name(part.name), part.how)
		if err != nil {
			for _, fd := range fds {
				_ = unix.Close(fd)
			}
			return err
		}
		fds = append(fds, fd)
	}
	var err error
	if r.store, err = shmstore.OpenReader(fds[0], fds[1], fds[2]); err != nil {
		return fmt.Errorf("%w: %w", connector.ErrCorrupt, err)
	}
	if r.store.StoreID() != r.record.store || int(r.store.ID()) != r.place {
		return fmt.Errorf("%w: its files are of several stores", connector.ErrCorrupt)
	}
	return nil
}

// alive reports whether the creator is.
func (r *reader) alive() bool { return r.head.held(lockCreator) }

// take gets a value.
func (r *reader) take(ctx context.Context, at address, number uint64) (connector.Payload, error) {
	return r.find(ctx, at, number, r.claim)
}

// peek looks at a value.
func (r *reader) peek(ctx context.Context, at address, number uint64) (connector.Payload, error) {
	return r.find(ctx, at, number, func(_ context.Context, c candidate, h shmstore.Handle) (verdict, error) {
		return r.judge(c, h), nil
	})
}

// A verdict says what became of a candidate.
type verdict int

const (
	good  verdict = iota // it is the value
	gone                 // somebody has got it
	moved                // it was replaced, or removed: look again
)

// judge says whether a value that is pinned lies where it was found.
func (r *reader) judge(c candidate, h shmstore.Handle) verdict {
	switch {
	case !r.index.has(c):
		return moved
	case isGot(r.all, h.Slot, h.Gen):
		return gone
	}
	return good
}

// maxLooks bounds how often a cell is looked at whose slot has no value: a creator that
// replaces values all the time has a reader look again, but not so often.
const maxLooks = 1 << 16

// find finds the value of an address, pins it, and lets decide whether it is the caller's.
func (r *reader) find(ctx context.Context, at address, number uint64, decide decision) (connector.Payload, error) {
	again := true
	for looks := 0; again && looks < maxLooks; looks++ {
		again = false
		for c := range r.index.find(at.hash()) {
			value, changed, err := r.try(ctx, c, at, number, decide)
			if value != nil || err != nil {
				return value, err
			}
			again = again || changed
		}
		if err := ctx.Err(); again && err != nil {
			return nil, err //nolint:wrapcheck // the context's
		}
	}
	return nil, connector.ErrNotFound
}

// A decision is made of what a candidate names, while that is pinned.
type decision func(context.Context, candidate, shmstore.Handle) (verdict, error)

// try pins what a candidate names, and returns it if it is the value, and otherwise
// whether it changed meanwhile, so that the value is to be looked for again.
//
// That is so of a slot without a value although its cell is the same: the cell names a
// slot once its value is there, so it was replaced, twice if need be, and the slot used
// again.
func (r *reader) try(ctx context.Context, c candidate, at address, number uint64, decide decision) (_ connector.Payload, changed bool, _ error) {
	h, ok := r.store.Find(c.slot())
	switch {
	case ok && number != 0 && number != r.record.number(h.Gen):
		return nil, !r.index.has(c), nil
	case !ok || h.Slot >= r.record.slots:
		return nil, true, nil
	}
	lease, err := r.store.Pin(h)
	if err != nil {
		return nil, errors.Is(err, shmstore.ErrStale) || !r.index.has(c), nil
	}
	faultpoint.Hit("posix-pinned")
	v := gone
	value, mine := at.unlabel(lease.Bytes())
	if mine {
		v, err = decide(ctx, c, h)
	}
	if v == good && err == nil {
		return r.hold(value, func() { lease.Release() }), false, nil
	}
	lease.Release()
	return nil, v == moved, err
}

// claim marks a value as got by this reader, if nobody else has. It is pinned, so the
// slot is no other value's meanwhile.
func (r *reader) claim(ctx context.Context, c candidate, h shmstore.Handle) (verdict, error) {
	r.claiming.Lock()
	defer r.claiming.Unlock()
	if err := r.head.lockSlot(ctx, h.Slot); err != nil {
		return gone, err
	}
	defer r.head.unlockSlot(h.Slot)
	faultpoint.Hit("posix-slot-locked")
	v := r.judge(c, h)
	if v == good {
		r.own.got[h.Slot].Store(h.Gen)
		faultpoint.Hit("posix-marked")
	}
	return v, nil
}

// release leaves the place, when nothing that was got is held any more.
func (r *reader) release() {
	if r.store != nil {
		_ = r.store.Close() // nothing is held
	}
	if r.own != nil {
		r.own.waiting.Store(0)
		r.own.pid.Store(0)
	}
	r.cells.release()
	releaseMarks(r.all)
	if r.room >= 0 {
		_ = unix.Close(r.room)
	}
	r.head.close() // and with it the place's lock
}
