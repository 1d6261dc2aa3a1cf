package posix

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/inotify"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// onTight is called when a put finds no room: what readers have got, and what the dead
// held, is given back. From then on they say when they release something.
func (o *owner) onTight(s *shmstore.Store) {
	o.listen()
	o.giveBack(s)
}

// listen begins to listen to the bell that readers ring for room. Without it, what they
// release is found with the next look.
func (o *owner) listen() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch != nil || o.blind {
		return
	}
	w := inotify.New(func([]byte) { o.room.Look() })
	if err := w.Add(o.files.path+"/"+o.files.name(fileRoom), unix.IN_MODIFY); err != nil {
		w.Close()
		o.blind = true
		o.opts.Log.Warn("a store is not told when there is room", "store", o.opts.Name, "err", err)
		return
	}
	o.watch = w
}

// giveBack releases what readers have got, which only they hold from then on, and
// forgets what the dead hold. It is called by the store's writer.
func (o *owner) giveBack(s *shmstore.Store) {
	o.reclaim(o.got)
	for i := range o.marks {
		o.evacuate(s, i)
	}
}

// evacuate frees the place of a reader that died: one that has said who it is, and
// whose lock the kernel has given up. Who comes next may do the same at this moment, and
// has the lock then.
func (o *owner) evacuate(s *shmstore.Store, i int) {
	m, at := &o.marks[i], int64(i+1)
	pid := m.pid.Load()
	if pid == 0 || o.head.held(at) {
		return
	}
	if free, err := o.head.tryLock(at); !free || err != nil {
		return
	}
	defer o.head.unlock(at)
	if err := s.ResetReader(shmstore.ReaderID(i + 1)); err != nil { //nolint:gosec // there are MaxReaders
		o.opts.Log.Warn("what a dead reader held stays", "store", o.opts.Name, "process", pid, "err", err)
		return
	}
	m.waiting.Store(0)
	m.pid.Store(0)
	faultpoint.Hit("posix-evacuated")
	o.opts.Log.Info("a reader of a store has died", "store", o.opts.Name, "process", pid)
}

// onTimer looks for what nobody tells, and again as long as there is something.
func (o *owner) onTimer() {
	if !o.enter() {
		return
	}
	defer o.leave()
	o.room.Do(o.giveBack)
	o.sweep()
	o.room.Look()
	o.mu.Lock()
	defer o.mu.Unlock()
	again := len(o.values) > 0
	for i := range o.marks {
		again = again || o.marks[i].pid.Load() != 0
	}
	if !again || o.closed {
		o.timer = nil
		return
	}
	o.timer.Reset(o.opts.LookEvery)
}

// sweep reclaims what nobody came for in its time.
func (o *owner) sweep() {
	if o.opts.TTL == 0 {
		return
	}
	now := time.Now()
	for _, v := range o.reclaim(func(v *value) bool { return now.Sub(v.at) >= o.opts.TTL }) {
		o.opts.Log.Warn("nobody came for a value", "edge", v.address.edge.String(), "key", v.address.key,
			"bytes", v.handle.Size, "store", o.opts.Name, "after", o.opts.TTL)
	}
}
