package lane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/omnibus-runtime/omnibus/codec/bundle"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/pool"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// wordsNumber is the published number of a pool's words; those of its arenas follow.
const wordsNumber = 0

// Sender is the part of a lane that sends payloads of one store: its pool is a device of that
// store. It is safe for concurrent use.
type Sender struct {
	lane    *Lane
	onSpace func()
	host    *hostMap // the store's arena; nil: not registered

	makeMu  ctxMutex   // held while a pool is made
	mu      sync.Mutex // guards all below
	pool    *pool.Pool
	exports *pool.Exports
	why     map[Mode]error // reason why a mode does not work
	arenas  map[uint32]*ownArena
	copies  int // messages whose copies run
	idle    chan struct{}
	closed  bool
}

// ownArena is an arena of the sender's pool.
type ownArena struct {
	memory    cudaipc.Arena
	publishMu ctxMutex // held while it is published
	published bool     // guarded by publishMu
}

// Sender makes a sender for a store whose payloads lie in arena. It calls onSpace when its pool has
// space again without a call of the store, for waiting allocations. The arena is registered with
// the GPU, so that copies run at full speed; it stays mapped until the sender is closed. The pool
// is made with the first use. A sender of a closed lane sends through host memory.
func (l *Lane) Sender(arena []byte, onSpace func()) *Sender {
	s := &Sender{lane: l, onSpace: onSpace, makeMu: newCtxMutex(), why: make(map[Mode]error), arenas: make(map[uint32]*ownArena)}
	l.mu.Lock()
	s.closed = l.closed
	if !s.closed {
		l.senders = append(l.senders, s)
	}
	l.mu.Unlock()
	if s.closed {
		return s
	}
	if l.firstDevice != nil && len(arena) > 0 {
		s.host = l.maps.add(&hostMap{lane: l, mem: arena})
		s.host.registeredOn(l.firstDevice)
	}
	return s
}

// Why returns nil for a mode that works, or the reason why it does not.
func (s *Sender) Why(mode Mode) error {
	if err := s.lane.Why(mode); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.why[mode]
}

// prepareMode reports whether a mode works, and makes its pool or exports at the first call. The
// only error is the context's: then the next call tries again.
func (s *Sender) prepareMode(ctx context.Context, mode Mode) (works bool, err error) {
	if works, tried := s.modeState(mode); tried {
		return works, nil
	}
	if err := s.makeMu.lock(ctx); err != nil {
		return false, fmt.Errorf("prepare %v: %w", mode, err)
	}
	defer s.makeMu.unlock()
	if works, tried := s.modeState(mode); tried {
		return works, nil
	}
	if mode == Pool {
		err = s.makePool(ctx, s.lane.firstDevice)
	} else {
		err = s.makeExports(ctx, s.lane.firstDevice)
	}
	switch {
	case err == nil:
		return true, nil
	case hasEnded(ctx, err):
		return false, err
	}
	s.lane.opts.Logger.Warn("tensors travel through host memory", slog.Any("instead", mode.String()), slog.Any("why", err))
	s.mu.Lock()
	s.why[mode] = err
	s.mu.Unlock()
	return false, nil
}

// modeState reports whether a mode works, and whether that is known.
func (s *Sender) modeState(mode Mode) (works, tried bool) {
	if s.lane.Why(mode) != nil {
		return false, true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	made := mode == Pool && s.pool != nil || mode == IPC && s.exports != nil
	works = made && !s.closed && s.why[mode] == nil
	return works, made || s.closed || s.why[mode] != nil
}

// hasEnded reports whether an error is that of an ended context.
func hasEnded(ctx context.Context, err error) bool {
	return ctx.Err() != nil && (errors.Is(err, context.Cause(ctx)) || errors.Is(err, ctx.Err()))
}

func (s *Sender) makePool(ctx context.Context, d *device) error {
	opts := s.lane.opts.Pool
	opts.OnArena, opts.OnArenaGone, opts.OnSpace = s.arenaMade, s.arenaGone, s.onSpace
	p, err := pool.New(d.Device, opts)
	if err != nil {
		return err
	}
	if err := s.publishWords(ctx, p.ID(), p.Words()); err != nil {
		return errors.Join(err, p.Close())
	}
	s.mu.Lock()
	s.pool = p
	s.mu.Unlock()
	return nil
}

func (s *Sender) makeExports(ctx context.Context, d *device) error {
	e, err := pool.NewExports(d.Device, s.lane.opts.Pool.Slots)
	if err != nil {
		return err
	}
	if err := s.publishWords(ctx, e.ID(), e.Words()); err != nil {
		return errors.Join(err, e.Close())
	}
	s.mu.Lock()
	s.exports = e
	s.mu.Unlock()
	return nil
}

func (s *Sender) publishWords(ctx context.Context, id [16]byte, words *shmstore.Segment) error {
	if s.lane.opts.Directory == nil {
		return nil
	}
	return s.lane.opts.Directory.Publish(ctx, Name{Pool: id, Number: wordsNumber}, words.FD(), words.Size())
}

// arenaMade is called by the store's writer, which must not block: the arena is published by the
// first sender of a piece in it.
func (s *Sender) arenaMade(number uint32, a cudaipc.Arena) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.arenas[number] = &ownArena{memory: a, publishMu: newCtxMutex()}
	if h, ok := a.(*pool.HandleArena); ok {
		lendArena(s.lane.firstDevice.uuid, h)
	}
}

func (s *Sender) arenaGone(number uint32) {
	s.mu.Lock()
	p, a := s.pool, s.arenas[number]
	delete(s.arenas, number)
	s.mu.Unlock()
	if h, ok := a.memory.(*pool.HandleArena); ok {
		releaseLentArena(h)
	}
	if p == nil {
		return // the pool was not published yet
	}
	if dir := s.lane.opts.Directory; dir != nil {
		dir.Withdraw(Name{Pool: p.ID(), Number: number})
	}
}

// arena returns an arena of the pool, or nil.
func (s *Sender) arena(number uint32) *ownArena {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.arenas[number]
}

// publishArena publishes the arena of a chunk, once.
func (s *Sender) publishArena(ctx context.Context, number uint32) error {
	dir := s.lane.opts.Directory
	if dir == nil {
		return nil
	}
	a := s.arena(number) // an arena with a chunk is not closed
	if err := a.publishMu.lock(ctx); err != nil {
		return fmt.Errorf("publish arena %d: %w", number, err)
	}
	defer a.publishMu.unlock()
	if a.published {
		return nil
	}
	err := publishMemory(ctx, dir, Name{Pool: s.pool.ID(), Number: number}, a.memory)
	a.published = err == nil
	return err
}

// ownSender returns the sender of this process whose pool or exports have this ID, and their words.
func (l *Lane) ownSender(id [16]byte) (s *Sender, words *shmstore.Segment) {
	l.mu.Lock()
	senders := l.senders
	l.mu.Unlock()
	for _, s := range senders {
		s.mu.Lock()
		p, e := s.pool, s.exports
		s.mu.Unlock()
		switch {
		case p != nil && p.ID() == id:
			return s, p.Words()
		case e != nil && e.ID() == id:
			return s, e.Words()
		}
	}
	return nil, nil
}

// openOwn maps a range of this process: its memory is mapped already, and a driver would refuse to
// map it again.
func (g *gate) openOwn(s *Sender, words *shmstore.Segment, p bundle.Place) (err error) {
	if g.ready, g.fault, err = wordsOf(words, p.Slot); err != nil {
		return err
	}
	if p.Kind == bundle.PlaceHandle {
		return g.setLentBase(p)
	}
	a := s.arena(p.Arena)
	if a == nil || g.dev != s.lane.firstDevice {
		return fmt.Errorf("%w: arena %d of this process, on %v", ErrForged, p.Arena, g.dev.uuid)
	}
	return g.setBase(a.memory.Base(), a.memory.Bytes(), p)
}

// Check compares the redundant records of the pool, and returns the contradictions.
func (s *Sender) Check() error {
	s.mu.Lock()
	p, e := s.pool, s.exports
	s.mu.Unlock()
	var found []pool.Violation
	if p != nil {
		found = append(found, p.Check()...)
	}
	if e != nil {
		found = append(found, e.Check()...)
	}
	var errs []error
	for _, v := range found {
		errs = append(errs, fmt.Errorf("GPU pool: %v", v))
	}
	return errors.Join(errs...)
}

// Devices returns the devices of which objects of the store may hold pieces.
func (s *Sender) Devices() []shmstore.Device {
	s.mu.Lock()
	defer s.mu.Unlock()
	var devices []shmstore.Device
	if s.pool != nil {
		devices = append(devices, s.pool)
	}
	if s.exports != nil {
		devices = append(devices, s.exports)
	}
	return devices
}

// Close releases everything that the sender has made. It comes before the Close of the store and
// after the store's objects have freed their pieces: see [shmstore.Store.FreeUnusedOn]. It waits
// for running copies into the pool; when ctx ends first, the sender stays as it is.
func (s *Sender) Close(ctx context.Context) error {
	if err := s.drain(ctx); err != nil {
		return err
	}
	if err := s.makeMu.lock(ctx); err != nil {
		return fmt.Errorf("close GPU lane: a pool is being made: %w", err)
	}
	defer s.makeMu.unlock()
	s.mu.Lock()
	p, e := s.pool, s.exports
	s.mu.Unlock()
	var errs []error
	dir := s.lane.opts.Directory
	if e != nil {
		if dir != nil {
			dir.Withdraw(Name{Pool: e.ID(), Number: wordsNumber})
		}
		errs = append(errs, e.Close())
	}
	if p != nil {
		if dir != nil {
			dir.Withdraw(Name{Pool: p.ID(), Number: wordsNumber})
		}
		errs = append(errs, p.Close())
	}
	if s.host != nil {
		s.lane.maps.remove(s.host)
		errs = append(errs, s.host.close())
	}
	s.lane.removeSender(s)
	return errors.Join(errs...)
}

// beginCopy counts a message with running copies.
func (s *Sender) beginCopy() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.copies++
}

// endCopy undoes beginCopy. If a chunk was freed during its copies, waiting allocations wait for
// this.
func (s *Sender) endCopy() {
	s.mu.Lock()
	if s.copies--; s.copies == 0 && s.idle != nil {
		close(s.idle)
		s.idle = nil
	}
	late := s.pool != nil && s.pool.Late() > 0 || s.exports != nil && s.exports.Late() > 0
	s.mu.Unlock()
	if late {
		s.onSpace()
	}
}

// Lent returns the exports, and the number of messages that others read in the sender's own
// buffers. The store releases the buffers when it evicts the messages: see
// [shmstore.Store.FreeUnusedOn].
func (s *Sender) Lent() (exports shmstore.Device, messages int) {
	s.mu.Lock()
	e := s.exports
	s.mu.Unlock()
	if e == nil {
		return nil, 0
	}
	messages = e.Pieces()
	return e, messages
}

func (s *Sender) drain(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	if s.copies > 0 && s.idle == nil {
		s.idle = make(chan struct{})
	}
	idle, copies := s.idle, s.copies
	s.mu.Unlock()
	if copies == 0 {
		return nil
	}
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("close GPU lane: %d messages are being copied: %w", copies, ctx.Err())
	}
}
