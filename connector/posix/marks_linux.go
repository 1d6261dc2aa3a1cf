package posix

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// marks are what the reader in one place says, in a file of its own: a page with
//
//	offset  size  field
//	     0     8  how many wait there for a value
//	     8     8  process id, for messages; 0 when it has left
//
// and behind it 8 bytes for each slot, the generation of the last value that the
// reader got from it.
type marks struct {
	mapping
	waiting, pid *atomic.Uint64
	got          []atomic.Uint64
}

func marksBytes(slots int) int { return pageBytes + slots*cellBytes }

func marksPart(place int) string { return fileMarks + strconv.Itoa(place) }

func marksOf(m mapping, err error) (marks, error) {
	if err != nil {
		return marks{}, err
	}
	words := wordsOf(m.data)
	return marks{m, &words[0], &words[1], words[pageBytes/cellBytes:]}, nil
}

func (f files) makeMarks(place, slots int) (marks, error) {
	return marksOf(f.makeMapping(marksPart(place), marksBytes(slots)))
}

func (f files) openMarks(place, slots, protection int) (marks, error) {
	return marksOf(f.openMapping(marksPart(place), marksBytes(slots), protection))
}

// isGot reports whether a reader has got the value of a generation. Who was in
// that place does not matter.
func isGot(all []marks, slot uint32, generation uint64) bool {
	for i := range all {
		if all[i].got[slot].Load() == generation {
			return true
		}
	}
	return false
}

func releaseMarks(all []marks) {
	for i := range all {
		all[i].release()
	}
}

const (
	// firstNap and lastNap are how long whoever finds a lock taken waits before it
	// looks again.
	firstNap = 50 * time.Microsecond
	lastNap  = 5 * time.Millisecond
	// slotPatience is how long a living process may take over a value that another
	// wants too: it needs microseconds, unless it was stopped.
	slotPatience = time.Second
	// placePatience is how long the creator may look into places.
	placePatience = 100 * time.Millisecond
)

// errLate says that somebody kept a lock for too long.
var errLate = fmt.Errorf("%w: it keeps a lock", connector.ErrBusy)

// lockSlot locks a slot, which others do for no longer than it takes to mark it.
func (h head) lockSlot(ctx context.Context, slot uint32) error {
	err := await(ctx, slotPatience, func() (bool, error) { return h.tryLock(lockSlots + int64(slot)) })
	if errors.Is(err, errLate) {
		return fmt.Errorf("%w: it is taking this value, and was stopped at that", connector.ErrBusy)
	}
	return err
}

func (h head) unlockSlot(slot uint32) { h.unlock(lockSlots + int64(slot)) }

// await tries until it is done, or for as long as that may take.
func await(ctx context.Context, patience time.Duration, try func() (bool, error)) error {
	if done, err := try(); done || err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errLate)
	defer cancel()
	for nap := firstNap; ; nap = min(2*nap, lastNap) {
		timer := time.NewTimer(nap)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
		if done, err := try(); done || err != nil {
			return err
		}
	}
}
