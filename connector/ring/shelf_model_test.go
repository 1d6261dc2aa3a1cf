package ring

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/connector"
)

const (
	modelSlots = 3
	modelKeys  = 2

	modelRounds = 5 // of rapid's checks: each is short, and what it looks for is rare
	modelLength = 3 // times rapid's steps
)

// TestShelvesAgainstModel: processes put on shelves and plainly, take past the table and
// from it, and die at each step; the table hears of it late, and not in the order in which
// it was. Nobody gets what somebody has or had, nothing is released while it is read,
// everything is released once, and who asks by key gets what was put before.
func TestShelvesAgainstModel(t *testing.T) {
	for range modelRounds {
		rapid.Check(t, func(t *rapid.T) { modelOf(t, 0) })
	}
}

// TestShelvesAndLiars is the same beside a process that says what is not so, locks what it
// does not take, and puts as it must not. The others keep all promises but for what it has
// touched, and that comes back when it is gone, at the latest.
func TestShelvesAndLiars(t *testing.T) {
	for range modelRounds {
		rapid.Check(t, func(t *rapid.T) { modelOf(t, 1) })
	}
}

func modelOf(t *rapid.T, liars int) {
	w := newWorld(t, liars)
	living := func(do func(t *rapid.T, p *process)) func(*rapid.T) {
		return func(t *rapid.T) {
			if p := anyOf(t, w.processes, "process"); !p.dead {
				do(t, p)
			}
		}
	}
	actions := map[string]func(*rapid.T){
		"Put":         living(func(t *rapid.T, p *process) { p.putSlot(key(t), rapid.IntRange(1, 3).Draw(t, "skip")) }),
		"PutSend":     living(func(_ *rapid.T, p *process) { p.putSend() }),
		"PutReturn":   living(func(_ *rapid.T, p *process) { p.putReturn() }),
		"PutWhole":    living(func(t *rapid.T, p *process) { p.putSlot(key(t), 1); p.putSend(); p.putReturn() }),
		"PutPlain":    living(func(t *rapid.T, p *process) { p.putPlain(key(t)) }),
		"Returned":    living(func(_ *rapid.T, p *process) { p.handleReturned() }),
		"Open":        living(func(t *rapid.T, p *process) { p.open(anyOf(t, w.processes, "shelf of")) }),
		"Take":        living(func(t *rapid.T, p *process) { p.takeBegin(p.known(t)) }),
		"TakeEnd":     living(func(_ *rapid.T, p *process) { p.takeEnd() }),
		"TakeWhole":   living(func(t *rapid.T, p *process) { p.takeBegin(p.known(t)); p.takeEnd() }),
		"Took":        living(func(t *rapid.T, p *process) { p.tellTook(one(t, p.reads)) }),
		"Gave":        living(func(t *rapid.T, p *process) { p.gave(one(t, p.reads)) }),
		"Reclaim":     living(func(t *rapid.T, p *process) { p.reclaim(one(t, p.lain())) }),
		"HostReclaim": living(func(_ *rapid.T, p *process) { p.hostReclaim() }),
		"Over":        living(func(t *rapid.T, p *process) { p.over(t) }),
		"GetKey":      living(func(t *rapid.T, p *process) { p.getKey(key(t), rapid.Bool().Draw(t, "await")) }),
		"GetNumber":   living(func(t *rapid.T, p *process) { p.getNumber(one(t, w.values(func(v *value) bool { return v.returned }))) }),
		"Release":     living(func(t *rapid.T, p *process) { p.release(t, false) }),
		"PutBack":     living(func(t *rapid.T, p *process) { p.release(t, true) }),
		"Cleanup":     living(func(t *rapid.T, p *process) { p.cleanup(key(t)) }),
		"Reopen":      living(func(_ *rapid.T, p *process) { p.reopen() }),
		"Deliver":     func(t *rapid.T) { anyOf(t, w.processes, "from").deliver() },
		"Kill": living(func(t *rapid.T, p *process) {
			p.kill(rapid.IntRange(0, len(p.outbox)).Draw(t, "messages"))
		}),
		"End": func(t *rapid.T) {
			if p := anyOf(t, w.processes, "process"); p.dead {
				p.bury()
			}
		},
		"Sweep": func(*rapid.T) {
			w.gone("swept", func(v *value) bool { return v.placed }, w.table.sweepAll)
		},
		"Settle": func(*rapid.T) { w.settle() },
		"Tidy": func(t *rapid.T) {
			for _, f := range anyOf(t, w.processes, "shelf of").mem.files {
				if rapid.Bool().Draw(t, "tidy") {
					f.tidy()
				}
			}
		},
	}
	if liars > 0 {
		liar := func(do func(t *rapid.T, p *process)) func(*rapid.T) {
			return func(t *rapid.T) {
				for _, p := range w.processes {
					if p.lies && !p.dead {
						do(t, p)
						return
					}
				}
			}
		}
		actions["LieTook"] = liar(func(t *rapid.T, p *process) {
			if n := p.target(t); n != 0 {
				p.send(func() { p.reader.Took(n) })
			}
		})
		actions["LieGave"] = liar(func(t *rapid.T, p *process) {
			if n := p.target(t); n != 0 {
				p.send(func() { p.reader.Gave(n) })
			}
		})
		actions["LieLock"] = liar(func(t *rapid.T, p *process) { p.lieLock(t) })
		actions["LiePublish"] = liar(func(_ *rapid.T, p *process) { p.mem.published = p.number + 100 })
		actions["LieNumber"] = liar(func(t *rapid.T, p *process) { p.lieNumber(t) })
	}
	names := slices.Sorted(maps.Keys(actions))
	for range 4 { // what most of it is about
		names = append(names, "PutWhole", "TakeWhole", "Take", "Gave", "Reclaim", "HostReclaim", "Deliver", "Deliver", "Open")
	}
	step := func(t *rapid.T) {
		name := names[evenly(t, len(names), "action")]
		t.Log(name)
		actions[name](t)
	}
	for range modelLength {
		t.Repeat(map[string]func(*rapid.T){"step": step})
	}
	w.finish()
}

func key(t *rapid.T) string {
	return string('a' + rune(rapid.IntRange(0, modelKeys-1).Draw(t, "key")))
}

// evenly draws an index, no small ones rather than others, as rapid does.
func evenly(t *rapid.T, n int, label string) int {
	return int(uint64(rapid.Uint32().Draw(t, label)) * 0x9e3779b97f4a7c15 >> 33 % uint64(n))
}

func anyOf[E any](t *rapid.T, all []E, label string) E { return all[evenly(t, len(all), label)] }

func one[E any](t *rapid.T, all []E) (e E) {
	if len(all) == 0 {
		return e
	}
	return anyOf(t, all, "which")
}

func (p *process) putSlot(key string, skip int) {
	if p.putting != nil || len(p.mem.slots) >= modelSlots {
		return
	}
	p.number += uint64(skip)
	v := &value{world: p.world, from: p, owner: p.owner, mem: p.mem, number: p.number, key: key}
	v.touched = p.lies || p.mem.touched[v.number]
	p.world.all = append(p.world.all, v)
	p.mem.slots[v.number] = v
	p.putting, p.sent = v, false
}

func (p *process) putSend() {
	v := p.putting
	if v == nil || p.sent {
		return
	}
	p.sent = true
	at := later()
	p.send(func() {
		v.placed = true
		if err := v.owner.PutOn(p.shelf, v.number, at, modelEdge, v.key, v); err != nil && !p.lies && !v.owner.closed {
			p.world.t.Fatal(err)
		}
	})
}

func (p *process) putReturn() {
	if v := p.putting; v != nil && p.sent {
		p.mem.published = v.number
		v.returned = true
		p.putting = nil
	}
}

func (p *process) putPlain(key string) {
	p.flush()
	later()
	v := &value{world: p.world, from: p, owner: p.owner, key: key, placed: true}
	v.touched = p.lies
	p.world.all = append(p.world.all, v)
	number, err := p.owner.Put(modelEdge, key, v)
	if err != nil {
		p.world.t.Fatal(err)
	}
	v.number, v.returned = number, true
	later()
}

func (p *process) open(of *process) {
	if of.ended || p.reader.Knows(of.shelf) {
		return
	}
	f := of.mem.open(2)
	if !p.reader.Open(of.shelf, fakeWitness{f}) {
		p.world.t.Fatal("a shelf that is not known was refused")
	}
	p.files[of.mem] = f
}

// known is a value whose number the process may have been told, on a shelf that it has.
func (p *process) known(t *rapid.T) *value {
	return one(t, p.world.values(func(v *value) bool { return v.returned && v.mem != nil && p.files[v.mem] != nil }))
}

func (p *process) takeBegin(v *value) {
	if v == nil || v.mem.slots[v.number] != v {
		return
	}
	f := p.files[v.mem]
	if _, again := f.locks[v.number]; !again && f.lock(v.number, false) {
		p.looking = append(p.looking, v)
	}
}

func (p *process) takeEnd() {
	if len(p.looking) == 0 {
		return
	}
	v := p.looking[0]
	p.looking = p.looking[1:]
	if v.mem.slots[v.number] != v {
		delete(p.files[v.mem].locks, v.number)
		return
	}
	if p.lies && v.touched {
		return // it may have said that it has it, and that it needs it no more
	}
	p.world.takes(v)
	v.reader = p
	p.reads = append(p.reads, v)
}

func (p *process) tellTook(v *value) {
	if v != nil && !v.told {
		v.told = true
		p.send(func() { p.reader.Took(v.number) })
	}
}

func (p *process) gave(v *value) {
	if v == nil {
		return
	}
	p.reads = slices.DeleteFunc(p.reads, func(other *value) bool { return other == v })
	v.reader, v.gone = nil, true
	if f := p.files[v.mem]; f != nil {
		f.lock(v.number, true)
	}
	p.send(func() { p.reader.Gave(v.number) })
}

// reclaim has the owner use the room again of what it sees to be over.
func (p *process) reclaim(v *value) {
	if v == nil || v.used || !p.own.given(v.number) || !p.own.lock(v.number, true) {
		return
	}
	if v.used = true; !v.touched && (v.reader != nil && !v.reader.lies || v.host != nil) {
		p.world.t.Fatalf("the room of %#x is used again, and it is read", v.number)
	}
}

// hostReclaim is what a host does that is the owner itself.
func (p *process) hostReclaim() {
	lay := p.world.values(func(v *value) bool { return v.from == p && v.placed && v.frees == 0 && !v.touched })
	whole := len(p.shelf.on) <= ReclaimEach
	p.shelf.Reclaim()
	for _, v := range lay {
		switch over := p.mem.slots[v.number] == v && p.claims.given(v.number); {
		case v.frees > 0 && !over:
			p.world.t.Fatalf("%#x is given back, and not over", v.number)
		case v.frees == 0 && over && whole && v.host == nil:
			p.world.t.Fatalf("%#x is over, and not given back", v.number)
		}
	}
}

// lain is what lies in the process's slots.
func (p *process) lain() []*value {
	return p.world.values(func(v *value) bool { return v.mem == p.mem && p.mem.slots[v.number] == v })
}

// over has the process forget a shelf. It goes on reading what it has.
func (p *process) over(t *rapid.T) {
	var of *memory
	for _, v := range p.world.all { // in an order that does not change
		if v.mem != nil && p.files[v.mem] != nil && v.from.ended {
			of = v.mem
		}
	}
	if of == nil || slices.ContainsFunc(p.looking, func(v *value) bool { return v.mem == of }) || !rapid.Bool().Draw(t, "forget") {
		return
	}
	p.files[of].close()
	delete(p.files, of)
	for _, v := range p.world.all {
		if v.mem == of {
			first := v.from.shelf.First()
			p.send(func() { p.reader.Over(first) })
			return
		}
	}
}

// lying are the values that a Get by key may, or must, find.
func (w *world) lying(key string) (may, must []*value) {
	may = w.values(func(v *value) bool {
		return v.key == key && v.placed && v.frees == 0 && v.host == nil && v.reader == nil
	})
	must = w.values(func(v *value) bool { return v.key == key && v.there() && !v.touched })
	return may, must
}

func (p *process) getKey(key string, await bool) {
	w := p.world
	p.flush()
	w.catchUp()
	may, must := w.lying(key)
	if len(must) > 1 {
		w.t.Fatalf("%d values lie under one key: %#x and %#x", len(must), must[0].number, must[1].number)
	}
	var g Taken
	var err error
	if await {
		g, err = w.table.Await(ended, nil, modelEdge, key, 0)
	} else {
		g, err = w.table.Get(modelEdge, key, 0)
	}
	p.have(g, err, may, must)
}

func (p *process) getNumber(v *value) {
	if v == nil {
		return
	}
	w := p.world
	p.flush()
	w.catchUp()
	var must []*value
	if v.there() && !v.touched {
		must = append(must, v)
	}
	g, err := w.table.Get(modelEdge, v.key, v.number)
	p.have(g, err, []*value{v}, must)
}

// have notes what the host has given.
func (p *process) have(g Taken, err error, may, must []*value) {
	t := p.world.t
	if err != nil {
		if len(must) > 0 && p.world.honest {
			t.Fatalf("%#x was put, and is not found: %v", must[0].number, err)
		}
		return
	}
	v, _ := g.Payload.(*value)
	if !slices.Contains(may, v) || (len(must) > 0 && v != must[0] && !v.touched) {
		t.Fatalf("got %#x, of %d that may be got and %d that must", v.number, len(may), len(must))
	}
	p.world.takes(v)
	v.host = p
	p.got = append(p.got, got{g, v})
}

func (p *process) release(t *rapid.T, back bool) {
	if len(p.got) == 0 {
		return
	}
	i := rapid.IntRange(0, len(p.got)-1).Draw(t, "which")
	g := p.got[i]
	p.got = slices.Delete(p.got, i, i+1)
	g.v.host = nil
	if back {
		g.PutBack()
		return
	}
	g.v.gone = true
	g.Release()
}

// gone checks that what lay there does not, afterwards.
func (w *world) gone(how string, is func(v *value) bool, do func()) {
	lay := w.values(func(v *value) bool { return v.there() && is(v) && !v.touched && w.honest })
	do()
	for _, v := range lay {
		if v.frees != 1 {
			w.t.Fatalf("%#x was %s, and released %d times", v.number, how, v.frees)
		}
	}
}

func (p *process) cleanup(key string) {
	p.flush()
	p.world.gone("cleaned up", func(v *value) bool { return v.owner == p.owner && v.key == key && v.placed }, func() { p.owner.Cleanup(key) })
}

func (p *process) reopen() {
	p.flush()
	p.world.gone("closed", func(v *value) bool { return v.owner == p.owner && v.placed }, p.owner.Close)
	p.owner = p.world.table.Owner("")
}

// target is a number for a lie: of a value, or of one that may come.
func (p *process) target(t *rapid.T) uint64 {
	v := p.known(t)
	if v == nil {
		return 0
	}
	number := v.number
	if rapid.Bool().Draw(t, "later") {
		number = v.from.number + 1
	}
	p.touches(v.mem, number)
	return number
}

func (p *process) touches(mem *memory, number uint64) {
	for _, v := range p.world.all {
		if v.mem == mem && v.number == number {
			v.touched = true
		}
	}
	if mem.touched == nil {
		mem.touched = make(map[uint64]bool)
	}
	mem.touched[number] = true
}

func (p *process) lieLock(t *rapid.T) {
	if v := p.known(t); v != nil {
		p.touches(v.mem, v.number)
		f := p.files[v.mem]
		if _, ok := f.locks[v.number]; ok && rapid.Bool().Draw(t, "unlock") {
			if v.reader != p { // else it says later that it needs it no more
				delete(f.locks, v.number)
				v.gone = v.frees > 0
			}
			return
		}
		f.lock(v.number, rapid.Bool().Draw(t, "share"))
	}
}

// lieNumber puts under a number that cannot be, for which the host ends the process.
func (p *process) lieNumber(t *rapid.T) {
	p.flush()
	number := rapid.SampledFrom([]uint64{0, p.shelf.last, p.shelf.first, p.shelf.first - 1, p.shelf.first + rangeNumbers}).Draw(t, "number")
	v := &value{world: p.world, from: p, owner: p.owner, mem: p.mem, number: number, placed: true, touched: true}
	p.world.all = append(p.world.all, v)
	if err := p.owner.PutOn(p.shelf, number, Now(), modelEdge, "a", v); !errors.Is(err, ErrShelf) && !errors.Is(err, connector.ErrClosed) {
		t.Fatalf("number %#x behind %#x: %v", number, p.shelf.last, err)
	}
	p.kill(0)
}
