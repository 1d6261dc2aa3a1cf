package ring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/connector"
)

// memory is a shelf, and its file's locks.
type memory struct {
	slots     map[uint64]*value
	published uint64
	files     []*file
	touched   map[uint64]bool // by somebody who lies
}

// file is an open file description.
type file struct {
	mem   *memory
	locks map[uint64]bool // shared
	refs  int
}

func (m *memory) open(refs int) *file {
	f := &file{mem: m, locks: make(map[uint64]bool), refs: refs}
	m.files = append(m.files, f)
	return f
}

func (f *file) lock(number uint64, shared bool) bool {
	for _, other := range f.mem.files {
		if theirs, ok := other.locks[number]; ok && other != f && (!theirs || !shared) {
			return false
		}
	}
	f.locks[number] = shared
	return true
}

func (f *file) alone(number uint64) bool {
	for _, other := range f.mem.files {
		if _, ok := other.locks[number]; ok && other != f {
			return false
		}
	}
	return true
}

// given reports whether others share the lock.
func (f *file) given(number uint64) bool {
	for _, other := range f.mem.files {
		if other.locks[number] && other != f {
			return true
		}
	}
	return false
}

func (f *file) close() {
	if f.refs--; f.refs == 0 {
		f.mem.files = slices.DeleteFunc(f.mem.files, func(other *file) bool { return other == f })
	}
}

// tidy gives up what needs not be locked any more.
func (f *file) tidy() {
	for number := range f.locks {
		if f.mem.slots[number] == nil {
			delete(f.locks, number)
		}
	}
}

type fakeClaims struct{ *file }

func (c fakeClaims) Claim(number uint64) bool {
	_, again := c.locks[number]
	return !again && c.lock(number, false)
}
func (c fakeClaims) Free(number uint64) bool  { return c.alone(number) }
func (c fakeClaims) Given(number uint64) bool { return c.given(number) }
func (c fakeClaims) Share(number uint64) bool { return c.lock(number, true) }
func (c fakeClaims) Published() uint64        { return c.mem.published }

func (c fakeClaims) Beyond(number uint64) (all []uint64) {
	for n := range c.mem.slots {
		if n > number {
			all = append(all, n)
		}
	}
	return all
}

func (c fakeClaims) Close() { c.close() }

type fakeWitness struct{ *file }

func (w fakeWitness) Alone(number uint64) bool { return w.alone(number) }
func (w fakeWitness) Share(number uint64) bool { return w.lock(number, true) }
func (w fakeWitness) Close()                   { w.close() }

// value is what somebody puts, and a payload.
type value struct {
	world  *world
	from   *process
	owner  *Owner
	mem    *memory // nil: placed plainly
	number uint64
	key    string

	placed   bool     // the table has been told
	returned bool     // its Put
	host     *process // has it from the table
	reader   *process // reads it in place
	told     bool     // the reader's Took is sent
	used     bool     // its room is used again
	gone     bool     // whoever had it needs it no more
	touched  bool     // by somebody who lies
	frees    int
}

func (v *value) Bytes() []byte { return make([]byte, 10) }

// Release implements [connector.Payload].
func (v *value) Release() {
	t := v.world.t
	v.frees++
	switch {
	case v.frees > 1:
		t.Fatalf("%#x was released twice", v.number)
	case v.reader != nil && !v.reader.lies && !v.touched:
		t.Fatalf("%#x was released, and is read", v.number)
	case v.host != nil:
		t.Fatalf("%#x was released, and somebody has it from the table", v.number)
	}
	if v.mem != nil {
		v.from.inbox = append(v.from.inbox, v)
	}
}

// had reports whether anybody but the table has it, or has it locked.
func (v *value) had() bool {
	if v.host != nil || v.reader != nil || v.gone {
		return true
	}
	if v.mem != nil {
		for _, f := range v.mem.files {
			if _, ok := f.locks[v.number]; ok && f != v.from.claims {
				return true
			}
		}
	}
	return false
}

// there reports whether the table must have it, once it has been told of it.
func (v *value) there() bool {
	return v.returned && v.frees == 0 && !v.had() && !v.from.ended && !v.owner.closed
}

// process puts, and takes. Its messages to the host keep their order.
type process struct {
	world  *world
	lies   bool
	owner  *Owner
	shelf  *Shelf
	mem    *memory
	claims *file // the host's
	own    *file
	reader *Reader
	number uint64

	putting *value
	sent    bool // the value that is being put
	outbox  []func()
	inbox   []*value // given back
	files   map[*memory]*file
	looking []*value // locked
	reads   []*value
	got     []got
	dead    bool // and the host has not seen to it
	ended   bool
}

func (p *process) GoString() string { return fmt.Sprintf("%#x", p.shelf.first) }

func (v *value) GoString() string { return fmt.Sprintf("%#x", v.number) }

type got struct {
	Taken
	v *value
}

// world is a table, and who uses it.
type world struct {
	t         *rapid.T
	table     *Table
	processes []*process
	all       []*value
	honest    bool
}

var modelEdge = connector.Edge{From: "a", To: "b"}

func newWorld(t *rapid.T, liars int) *world {
	w := &world{t: t, table: NewTable(0, slog.New(slog.DiscardHandler)), honest: liars == 0}
	for i := range 3 {
		w.processes = append(w.processes, w.start(i < liars))
	}
	return w
}

func (w *world) start(lies bool) *process {
	p := &process{world: w, lies: lies, owner: w.table.Owner(""), reader: w.table.Reader(), files: make(map[*memory]*file)}
	p.mem = &memory{slots: make(map[uint64]*value)}
	p.claims = p.mem.open(1)
	p.own = p.mem.open(1)
	p.number = w.table.NewRange()
	p.shelf = w.table.Shelf(p.number, fakeClaims{p.claims})
	return p
}

// later waits until the clock has moved on, so that no two puts have one time.
func later() int64 {
	for start := Now(); ; {
		if now := Now(); now > start {
			return now
		}
	}
}

// send queues a message of the process.
func (p *process) send(message func()) { p.outbox = append(p.outbox, message) }

func (p *process) deliver() {
	if len(p.outbox) > 0 {
		message := p.outbox[0]
		p.outbox = p.outbox[1:]
		message()
	}
}

// flush has the host read all that the process has sent.
func (p *process) flush() {
	for len(p.outbox) > 0 {
		p.deliver()
	}
}

// handleReturned has the process hear of a value that is needed no more.
func (p *process) handleReturned() {
	if len(p.inbox) == 0 || p.ended || p.dead {
		return
	}
	v := p.inbox[0]
	p.inbox = p.inbox[1:]
	if v.reader != nil && !v.reader.lies && !v.touched {
		p.world.t.Fatalf("the room of %#x is used again, and it is read", v.number)
	}
	if p.mem.slots[v.number] == v {
		delete(p.mem.slots, v.number)
	}
	delete(p.own.locks, v.number)
}

func (w *world) values(is func(v *value) bool) (all []*value) {
	for _, v := range w.all {
		if is(v) {
			all = append(all, v)
		}
	}
	return all
}

var ended, end = context.WithCancel(context.Background())

func init() { end() }

// catchUp is what the host does before it answers.
func (w *world) catchUp() {
	for _, b := range w.table.Behind() {
		var from *process
		for _, p := range w.processes {
			if p.shelf == b.shelf {
				from = p
			}
		}
		if from == nil { // it ended while another was waited for
			if err := b.Wait(ended); err != nil {
				w.t.Fatalf("an ended shelf is waited for: %v", err)
			}
			continue
		}
		for b.shelf.last < b.published && len(from.outbox) > 0 {
			if err := b.Wait(ended); !errors.Is(err, context.Canceled) {
				w.t.Fatalf("a shelf that is behind was waited for: %v", err)
			}
			from.deliver()
		}
		if err := b.Wait(ended); err == nil {
			continue
		}
		if from.dead { // it is waited for until the host sees that it is dead
			from.bury()
			continue
		}
		if !from.lies {
			w.t.Fatal("a value that was put never comes")
		}
		b.Doubt()
		if err := b.Wait(ended); err != nil {
			w.t.Fatalf("who is doubted is waited for: %v", err)
		}
	}
	for _, b := range w.table.Behind() {
		w.t.Fatalf("a shelf is behind: %+v", b)
	}
}

// takes checks that a value may be had by a process that has come to have it. A process that
// lies may lock what it does not read, and give up the lock, so that the owner uses the room
// again while the value can still be taken.
func (w *world) takes(v *value) {
	if v.touched {
		return
	}
	if v.host != nil || v.reader != nil || v.gone || v.used || v.frees > 0 {
		w.t.Fatalf("%#x was got: the host gave it to %p, %p reads it, over %v, its room used again %v, released %d times", v.number, v.host, v.reader, v.gone, v.used, v.frees)
	}
}

// end is what the host does when a process is dead.
func (p *process) end() {
	w := p.world
	p.flush()
	for _, g := range p.got {
		g.v.host, g.v.gone = nil, true
		g.Release()
	}
	p.shelf.Close()
	p.owner.Close()
	p.ended = true
	w.processes = slices.DeleteFunc(w.processes, func(other *process) bool { return other == p })
	var locked []*value
	for _, v := range w.all {
		for _, f := range p.files {
			if _, ok := f.locks[v.number]; ok && v.mem == f.mem && v.placed {
				locked = append(locked, v)
			}
		}
	}
	for _, v := range p.reads {
		v.reader, v.gone = nil, true
	}
	p.reader.Leave()
	for _, v := range locked {
		if v.frees == 0 && v.reader == nil && v.host == nil && !v.touched {
			w.t.Fatalf("%#x, which a dead process had, is not given back", v.number)
		}
	}
}

// bury is end, with another in its place.
func (p *process) bury() {
	p.end()
	p.world.processes = append(p.world.processes, p.world.start(p.lies))
}

// kill ends a process; the host reads some more of what it had sent.
func (p *process) kill(read int) {
	p.dead = true
	for len(p.outbox) > read {
		p.outbox = p.outbox[:len(p.outbox)-1]
	}
	for _, f := range p.files {
		f.close()
	}
	p.own.close()
}

// settle has everybody end what they have begun, and tell.
func (w *world) settle() {
	for _, p := range slices.Clone(w.processes) {
		if p.dead && !p.ended {
			p.bury()
		}
	}
	for _, p := range w.processes {
		p.putSend()
		p.putReturn()
		for len(p.looking) > 0 {
			p.takeEnd()
		}
		for _, v := range p.reads {
			p.tellTook(v)
		}
	}
	for _, p := range w.processes {
		p.flush()
	}
	for _, p := range w.processes {
		for len(p.inbox) > 0 {
			p.handleReturned()
		}
	}
	w.atRest()
}

// atRest checks what must be when everything has been said.
func (w *world) atRest() {
	lie := 0
	for _, v := range w.all {
		switch {
		case !v.placed || v.frees > 0 || v.host != nil || v.reader != nil:
		case v.gone:
			w.t.Fatalf("%#x, touched %v, from ended %v, is needed no more, and not given back", v.number, v.touched, v.from.ended)
		case v.there():
			lie++
		case !v.touched:
			w.t.Fatalf("%#x does not lie there, and nobody has it", v.number)
		}
	}
	st := w.table.Stats()
	if w.honest && (st.Entries != lie || st.Bytes != int64(10*lie)) {
		w.t.Fatalf("%d values lie there, and the table says %+v", lie, st)
	}
}

// finish ends everything, and nothing is left.
func (w *world) finish() {
	w.settle()
	for len(w.processes) > 0 {
		p := w.processes[0]
		p.kill(len(p.outbox))
		p.end()
	}
	for _, v := range w.all {
		if v.placed && v.frees != 1 {
			w.t.Errorf("%#x was released %d times, in the end", v.number, v.frees)
		}
		if v.mem != nil && len(v.mem.files) > 0 {
			w.t.Errorf("a shelf is open %d times, in the end", len(v.mem.files))
		}
	}
	if st := w.table.Stats(); st.Entries != 0 || st.Bytes != 0 || len(w.table.shelves) > 0 {
		w.t.Errorf("in the end the table has %+v, and %d shelves", st, len(w.table.shelves))
	}
}

// sweepAll sweeps as if everything had lain for too long.
func (t *Table) sweepAll() {
	for start := time.Now(); time.Since(start) < 2; {
	}
	t.mu.Lock()
	t.ttl = 1
	t.mu.Unlock()
	t.sweep()
	t.mu.Lock()
	t.ttl = 0
	t.mu.Unlock()
}
