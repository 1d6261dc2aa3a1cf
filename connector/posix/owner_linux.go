package posix

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/headroom"
	"github.com/omnibus-runtime/omnibus/internal/inotify"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// owner is the creator's side of a store. What is above the locks does not change once
// the store is built; of the marks the readers write their own.
type owner struct {
	opts    Options
	files   files
	head    head
	record  record
	room    *ring.Room
	cells   mapping
	index   index
	marks   []marks // of all places
	changed func()  // called when a value was put
	life

	claiming sync.Mutex // one lock of a slot at a time: they all are of one description

	mu     sync.Mutex
	values map[address]*value
	order  list.List // of values, those first that are looked at next
	closed bool
	bell   uint64
	timer  *time.Timer
	watch  *inotify.Watch // of the readers' bell; nil until there is no room
	blind  bool           // there can be none
}

// value is one that nobody is known to have got.
type value struct {
	address address
	object  *ring.Object
	bytes   []byte // without the label
	handle  shmstore.Handle
	cell    int
	at      time.Time
	place   *list.Element // in the owner's order
}

// create makes the store. If it fails, nothing is left.
func create(opts Options, f files, changed func()) (*owner, error) {
	h, err := f.claim()
	if err != nil {
		return nil, fmt.Errorf("create the store %s: %w", opts.Name, err)
	}
	o := &owner{opts: opts, files: f, head: h, changed: changed, values: make(map[address]*value)}
	o.end = o.release
	if err := o.build(); err != nil {
		o.unlink()
		o.finish()
		return nil, fmt.Errorf("create the store %s of %d bytes: %w", opts.Name, opts.Bytes, err)
	}
	return o, nil
}

// build makes all that belongs to the store, and then says so.
func (o *owner) build() error {
	if err := o.files.remove(); err != nil { // without a first file they are nobody's
		return err
	}
	if err := o.checkRoom(); err != nil {
		return err
	}
	room, err := ring.NewRoom(shmstore.Options{
		ArenaBytes: o.opts.Bytes, LargeObjectBytes: o.opts.Bytes / perArena, MaxLargeBytes: -1,
		MaxReaders: o.opts.Readers, Memory: shmstore.Shared, File: o.files.make,
	}, o.opts.Timeout)
	if err != nil {
		return memory(err)
	}
	o.room = room
	room.Do(func(s *shmstore.Store) { o.record, err = o.offer(s) })
	if err != nil {
		return memory(err)
	}
	room.OnTight(o.onTight)
	if err := o.buildBooks(); err != nil {
		return err
	}
	if err := o.head.write(o.record); err != nil {
		return err
	}
	o.head.ring(0)
	faultpoint.Hit("posix-created")
	return nil
}

// buildBooks makes what package shmstore has not: the index, the bell, and the marks.
func (o *owner) buildBooks() (err error) {
	slots := int(o.record.slots)
	need := uint64(indexCells(slots)*cellBytes + o.opts.Readers*marksBytes(slots)) //nolint:gosec // sizes
	if short := headroom.System().Check(need); short != nil {
		return fmt.Errorf("%w: %d bytes for its books are needed, %d are available by %s, of which %d are kept back",
			connector.ErrFull, need, short.AvailableBytes, short.Limit, short.KeepBytes)
	}
	if o.cells, err = o.files.makeMapping(fileIndex, indexCells(slots)*cellBytes); err != nil {
		return err
	}
	o.index = wordsOf(o.cells.data)
	fd, err := o.files.make(fileRoom)
	if err != nil {
		return err
	}
	_ = unix.Close(fd)
	for place := 1; place <= o.opts.Readers; place++ {
		m, err := o.files.makeMarks(place, slots)
		if err != nil {
			return err
		}
		o.marks = append(o.marks, m)
	}
	return nil
}

// checkRoom compares the store with what the file system has left, which may be less
// than the memory.
func (o *owner) checkRoom() error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(o.files.fd, &st); err != nil || st.Blocks == 0 { // no limit
		return nil //nolint:nilerr // then the allocation says it
	}
	if free := int64(st.Bavail) * st.Bsize; free < o.opts.Bytes { //nolint:gosec // the kernel's own figures
		return fmt.Errorf("%w: %s has %d bytes left: make it larger, or the store smaller", connector.ErrFull, o.files.path, free)
	}
	return nil
}

// offer makes the places for readers.
func (o *owner) offer(s *shmstore.Store) (record, error) {
	for range o.opts.Readers {
		if _, err := s.OfferReader(); err != nil {
			return record{}, err //nolint:wrapcheck // it says what it did
		}
	}
	return record{
		readers: uint32(o.opts.Readers), //nolint:gosec // at most MaxReaders
		pid:     uint64(os.Getpid()),    //nolint:gosec // it is positive
		store:   s.ID(), base: rand.Uint64(),
		slots: uint32(s.Stats().Slots), //nolint:gosec // a store has no more
	}, nil
}

// memory says the store's errors for want of memory in the connector's words.
func memory(err error) error {
	if errors.Is(err, shmstore.ErrMemory) {
		return fmt.Errorf("%w: %w", connector.ErrFull, err)
	}
	return full(err)
}

// put stores a value. The use of the store is the caller's.
func (o *owner) put(ctx context.Context, at address, size int, fill func(dst []byte) error) (connector.Metadata, error) {
	total := size + at.labelBytes()
	if most := o.opts.Bytes / perArena; int64(total) > most {
		return nil, fmt.Errorf("%w: the store takes %d bytes with edge and key, half of its memory, and this has %d: raise ring_bytes to %d",
			connector.ErrTooLarge, most, total, int64(total)*perArena)
	}
	o.lookAtSome()
	object, err := o.room.Write(ctx, total, func(dst []byte) error {
		at.label(dst[size:])
		return fill(dst[:size:size])
	})
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	faultpoint.Hit("posix-written")
	v := &value{address: at, object: object, bytes: object.Bytes()[:size:size], handle: object.Handle(), at: time.Now()}
	if err := o.publish(v); err != nil {
		return nil, err
	}
	faultpoint.Hit("posix-published")
	o.tell()
	meta := ring.Metadata(o.record.number(v.handle.Gen))
	meta[metaStore] = o.opts.Name
	return meta, nil
}

// publish puts a value where it belongs, in place of what lay there, which one step
// does for whoever looks.
func (o *owner) publish(v *value) error {
	o.mu.Lock()
	if o.closed {
		o.mu.Unlock()
		v.object.Release()
		return connector.ErrClosed
	}
	old := o.values[v.address]
	o.values[v.address] = v
	v.place = o.order.PushBack(v)
	if old != nil {
		o.order.Remove(old.place)
		v.cell = old.cell
		o.index.set(v.cell, v.address.hash(), v.handle.Slot)
	} else {
		v.cell = o.index.add(v.address.hash(), v.handle.Slot)
	}
	if o.timer == nil {
		o.timer = time.AfterFunc(o.opts.LookEvery, o.onTimer)
	}
	o.mu.Unlock()
	if old != nil {
		old.object.Release()
	}
	return nil
}

// tell has those look again who wait for a value, here and elsewhere. The value is
// there, and whoever waits has said so before it looked: one sees the other.
func (o *owner) tell() {
	o.changed()
	for i := range o.marks {
		if o.marks[i].waiting.Load() == 0 {
			continue
		}
		o.mu.Lock()
		o.bell++
		o.head.ring(o.bell)
		o.mu.Unlock()
		return
	}
}

// look returns the value that lies at an address, of a number if that is not 0, and that
// no reader has got.
func (o *owner) look(at address, number uint64) *value {
	o.mu.Lock()
	defer o.mu.Unlock()
	v := o.values[at]
	if v == nil || number != 0 && number != o.record.number(v.handle.Gen) || o.got(v) {
		return nil
	}
	return v
}

// take gets a value in the creator's own process.
func (o *owner) take(ctx context.Context, at address, number uint64) (connector.Payload, error) {
	o.claiming.Lock()
	defer o.claiming.Unlock()
	for {
		v := o.look(at, number)
		if v == nil {
			return nil, connector.ErrNotFound
		}
		if err := o.head.lockSlot(ctx, v.handle.Slot); err != nil {
			return nil, err
		}
		// Nobody can mark it any more, so if it is there now, it stays until it is removed.
		mine := o.look(at, number) == v && o.remove(v)
		o.head.unlockSlot(v.handle.Slot)
		if mine {
			return o.hold(v.bytes, v.object.Release), nil
		}
	}
}

// peek looks at a value in the creator's own process.
func (o *owner) peek(_ context.Context, at address, number uint64) (connector.Payload, error) {
	v := o.look(at, number)
	if v == nil {
		return nil, connector.ErrNotFound
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.values[at] != v {
		return nil, connector.ErrNotFound
	}
	shared, err := v.object.Share()
	if err != nil {
		return nil, err //nolint:wrapcheck // it says what it did
	}
	return o.hold(shared.Bytes()[:len(v.bytes):len(v.bytes)], shared.Release), nil
}

// remove takes a value out, if it is there. Its object is the caller's then.
func (o *owner) remove(v *value) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.values[v.address] != v {
		return false
	}
	o.drop(v)
	return true
}

// drop takes a value out that is there.
func (o *owner) drop(v *value) {
	delete(o.values, v.address)
	o.order.Remove(v.place)
	o.index.remove(v.cell)
}

// looks is how many values each put looks at.
const looks = 4

// lookAtSome takes values out that readers have got, so that the next one is put where
// they lay if they are released, too: memory that was written just now is faster than what
// was used an arena ago. The look comes round to all values.
func (o *owner) lookAtSome() {
	var gone [looks]*value
	o.mu.Lock()
	for i := range min(looks, o.order.Len()) {
		v := o.order.Front().Value.(*value) //nolint:forcetypeassert // it has no others
		if o.got(v) {
			o.drop(v)
			gone[i] = v
		} else {
			o.order.MoveToBack(v.place)
		}
	}
	o.mu.Unlock()
	for _, v := range gone {
		if v != nil {
			v.object.Release()
		}
	}
}

// got reports whether a reader has got a value.
func (o *owner) got(v *value) bool { return isGot(o.marks, v.handle.Slot, v.handle.Gen) }

// reclaim takes all values out that are to go, and releases them.
func (o *owner) reclaim(is func(*value) bool) (gone []*value) {
	o.mu.Lock()
	for _, v := range o.values {
		if is(v) {
			o.drop(v)
			gone = append(gone, v)
		}
	}
	o.mu.Unlock()
	for _, v := range gone {
		v.object.Release()
	}
	return gone
}

// cleanup reclaims the values under a key, and of a request.
func (o *owner) cleanup(key string) {
	o.reclaim(func(v *value) bool {
		return v.address.key == key || connector.Request(v.address.edge, v.address.key) == key
	})
	o.room.Do(o.giveBack)
}

// close ends the store: nobody finds anything in it any more, and its files are gone.
// What was got stays until it is released.
func (o *owner) close() {
	o.mu.Lock()
	o.closed = true
	if o.timer != nil {
		o.timer.Stop()
	}
	w := o.watch
	o.blind = true
	o.mu.Unlock()
	o.room.Stop()
	o.reclaim(func(*value) bool { return true })
	o.unlink()
	if w != nil {
		w.Close()
	}
	o.finish()
}

// unlink removes the files, the first one last: as long as it is there, nobody else
// makes files of these names.
func (o *owner) unlink() {
	err := o.files.remove()
	if err == nil {
		if err = unix.Unlinkat(o.files.fd, o.files.head, 0); errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	if err != nil {
		o.opts.Log.Warn("files of a store stay", "store", o.opts.Name, "err", err)
	}
	o.head.unlock(lockCreator)
}

// release gives the memory back when nobody uses it any more.
func (o *owner) release() {
	if o.room != nil {
		if err := o.room.Close(); err != nil {
			o.opts.Log.Warn("the memory of a store stays", "store", o.opts.Name, "err", err)
		}
	}
	o.cells.release()
	releaseMarks(o.marks)
	o.head.close()
}
