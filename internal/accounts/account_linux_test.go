package accounts

import (
	"errors"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// accountModel models an account: the payloads that the other process has, and the memory that
// was announced to it. It is the announcer of the account under test.
type accountModel struct {
	t       *rapid.T
	account Account
	memory  []*Segment
	holds   map[uint32]*modelHold
	knows   map[uint32]bool // numbers of memory
	retired map[*Segment]bool
	alive   int // payloads that are not freed
}

type modelHold struct {
	why                 HoldState
	in                  uint32 // number of the memory; 0: none
	seg                 *Segment
	bytes               int
	d                   *testDelivery
	finishing, released bool
}

// testDelivery is a delivery of a payload on the heap.
type testDelivery struct{ p *Payload }

// Hold implements Delivery.
func (d *testDelivery) Hold() Held {
	d.p.Retain(1)
	return &testHeld{p: d.p}
}

// testHeld is a reference to the payload of a testDelivery.
type testHeld struct{ p *Payload }

// Hold implements Held.
func (h *testHeld) Hold() Held {
	h.p.Retain(1)
	return &testHeld{p: h.p}
}

// Release implements Held.
func (h *testHeld) Release() { h.p.Release() }

var errRefused = errors.New("not sent")

// ShowMemory implements Announcer.
func (m *accountModel) ShowMemory(number uint32, _ *shmstore.Segment) error {
	if m.knows[number] {
		m.t.Fatalf("segment %d is announced twice", number)
	}
	m.knows[number] = true
	return nil
}

// HideMemory implements Announcer.
func (m *accountModel) HideMemory(number uint32) {
	if !m.knows[number] {
		m.t.Fatalf("segment %d is hidden and was not announced", number)
	}
	delete(m.knows, number)
}

// deliver adds a payload: in memory, in a segment of its own, or in a message.
func (m *accountModel) deliver(t *rapid.T) {
	size := rapid.IntRange(1, 100).Draw(t, "size")
	p := OnHeap(make([]byte, size), func() { m.alive-- })
	m.alive++
	h := &modelHold{bytes: size, d: &testDelivery{p}}
	var at Location
	if rapid.Bool().Draw(t, "in memory") {
		at = Location{Seg: rapid.SampledFrom(m.memory).Draw(t, "memory"), Alone: rapid.Bool().Draw(t, "alone")}
	}
	sent := rapid.IntRange(0, 5).Draw(t, "sent") > 0
	err := m.account.AddAndSend(&Hold{Delivery: h.d, Bytes: size}, at, func(number, segment uint32) error {
		if (segment != 0) != (at.Seg != nil) || segment != 0 && !m.knows[segment] {
			t.Fatalf("delivery %d lies in segment %d, and the process knows %v", number, segment, m.knows)
		}
		if !sent {
			return errRefused
		}
		h.in, h.seg = segment, at.Seg
		m.holds[number] = h
		return nil
	})
	if sent != (err == nil) {
		t.Fatalf("sent: %v, %v", sent, err)
	}
	if !sent {
		p.Release()
	}
}

// number is mostly the number of a payload that the process has.
func (m *accountModel) number(t *rapid.T) (uint32, *modelHold) {
	n := rapid.SampledFrom(append(slices.Sorted(maps.Keys(m.holds)), 1<<20)).Draw(t, "number")
	return n, m.holds[n]
}

// finishing finishes a payload at the process.
func (m *accountModel) finishing(t *rapid.T) {
	n, h := m.number(t)
	_, _, ok := m.account.Finishing(n)
	if want := h != nil && h.why == Sent && !h.finishing; ok != want {
		t.Fatalf("finishing %d: %v", n, ok)
	} else if want {
		h.finishing = true
	}
}

// finish ends a delivery that the process has finished.
func (m *accountModel) finish(t *rapid.T) {
	n, h := m.number(t)
	keep := rapid.Bool().Draw(t, "keep")
	d, _ := m.account.Finish(n, keep)
	switch {
	case (d != nil) != (h != nil && h.why == Sent):
		t.Fatalf("finish %d: %v", n, d)
	case d == nil:
		return
	case keep && !h.released:
		h.why, h.d = Kept, nil
	default:
		delete(m.holds, n)
	}
	d.(*testDelivery).p.Release()
}

// release releases a payload that the process keeps, before or after its finish.
func (m *accountModel) release(t *rapid.T) {
	n, h := m.number(t)
	has := m.account.Release(n)
	if want := h != nil && (h.why == Kept || h.finishing); has != want {
		t.Fatalf("release %d: %v", n, has)
	} else if !want {
		return
	}
	if h.why == Kept {
		delete(m.holds, n)
	} else {
		h.released = true
	}
}

// pass shares a payload that the process forwards.
func (m *accountModel) pass(t *rapid.T) {
	n, h := m.number(t)
	p := m.account.Share(n)
	if (p != nil) != (h != nil) {
		t.Fatalf("pass %d on: %v", n, p)
	}
	if h != nil {
		p.Release()
	}
}

// retire retires memory: no more payloads come into it.
func (m *accountModel) retire(t *rapid.T) {
	seg := rapid.SampledFrom(m.memory).Draw(t, "memory")
	seg.Retire()
	m.retired[seg] = true
	m.account.Retire(seg)
}

// agree compares the account with the model.
func (m *accountModel) agree(t *rapid.T) {
	if wrong := m.account.Check(); len(wrong) > 0 {
		t.Fatal(wrong)
	}
	want := make(map[HoldState]Tally)
	for n, h := range m.holds {
		if h.in != 0 && !m.account.closed && !m.knows[h.in] {
			t.Fatalf("the process has delivery %d in segment %d, which was hidden", n, h.in)
		}
		sum := want[h.why]
		sum.Payloads, sum.Bytes = sum.Payloads+1, sum.Bytes+int64(h.bytes)
		want[h.why] = sum
	}
	for _, reason := range []HoldState{Sent, Kept, Fetched, HungUp} {
		if got := m.account.Tally(reason); got.Payloads != want[reason].Payloads || got.Bytes != want[reason].Bytes {
			t.Fatalf("in state %d the process has %+v, want %+v", reason, got, want[reason])
		}
	}
	for _, seg := range m.memory {
		used := slices.ContainsFunc(slices.Collect(maps.Values(m.holds)), func(h *modelHold) bool { return h.seg == seg && h.in == m.account.knows(seg) })
		if known := m.account.knows(seg) != 0; known && m.retired[seg] && !used {
			t.Fatal("a segment stays announced without payloads, and no more come into it")
		}
	}
}

// end closes the account, gives the unfinished payloads back, and drops it.
func (m *accountModel) end(t *rapid.T) {
	reads := rapid.Bool().Draw(t, "reads")
	had := m.account.Close(reads)
	unfinished, stays := 0, 0
	for n, h := range m.holds {
		if h.why == Sent {
			unfinished++
		}
		if reads && h.in != 0 {
			h.why, h.d = HungUp, nil
			stays++
		} else {
			delete(m.holds, n)
		}
	}
	if len(had.Unfinished) != unfinished || had.NeedsDrop != (stays > 0) {
		t.Fatalf("it had %d unfinished, and more: %v; want %d, %d", len(had.Unfinished), had.NeedsDrop, unfinished, stays)
	}
	for _, h := range had.ToFree {
		h.Free()
	}
	for _, u := range had.Unfinished {
		u.(*testDelivery).p.Release()
	}
	m.agree(t)
	if err := m.account.AddAndSend(&Hold{}, Location{}, nil); !errors.Is(err, ErrClosed) {
		t.Fatalf("a payload for a closed account: %v", err)
	}
	if m.alive < stays {
		t.Fatalf("%d payloads are left of %d that the process may still read", m.alive, stays)
	}
	m.account.Drop()
	m.holds = nil
	m.agree(t)
	if m.alive != 0 {
		t.Fatalf("%d payloads are not freed after Drop", m.alive)
	}
	for i, seg := range m.memory {
		if refs := seg.refs.Load(); refs != 1 || seg.views.bytes.Load() != 0 {
			t.Fatalf("memory %d has %d references, and %d bytes are kept in it", i, refs, seg.views.bytes.Load())
		}
	}
}

// TestAccountAgainstModel: after any sequence of operations, the account has the payloads and the memory
// of the model, and after its end every payload is freed.
func TestAccountAgainstModel(t *testing.T) {
	mem, err := shmstore.NewSegment("account", 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer mem.Close()
	rapid.Check(t, func(t *rapid.T) {
		m := &accountModel{t: t, holds: make(map[uint32]*modelHold), knows: make(map[uint32]bool), retired: make(map[*Segment]bool)}
		m.account.Open(m)
		for range 3 {
			m.memory = append(m.memory, Lasting(mem, nil))
		}
		t.Repeat(map[string]func(*rapid.T){
			"deliver": m.deliver, "finishing": m.finishing, "finish": m.finish, "release": m.release,
			"pass": m.pass, "retire": m.retire, "": m.agree,
		})
		m.end(t)
	})
}

// knows is the number under which memory was announced; 0: it was not.
func (a *Account) knows(seg *Segment) uint32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	if t := a.announced[seg]; t != nil {
		return t.number
	}
	return 0
}

// TestGiveBackInParts: all payloads of a process are given back, a part at a time.
func TestGiveBackInParts(t *testing.T) {
	var a Account
	a.Open(nil)
	const n = 5*giveBackBatch/2 + 1
	back := 0
	for range n {
		h := &Hold{Returned: func() { back++ }}
		if err := a.AddAndSend(h, Location{}, func(_, _ uint32) error { return nil }); err != nil {
			t.Fatal(err)
		}
	}
	if more := a.GiveBackSome(All); !more || back != giveBackBatch {
		t.Errorf("%d are given back at first, and there are more: %v; want %d", back, more, giveBackBatch)
	}
	if a.GiveBackAll(All); back != n {
		t.Errorf("%d of %d are given back", back, n)
	}
}

// TestAccountNumbersWrap: a payload gets no number that another payload has, and not 0, which
// names none.
func TestAccountNumbersWrap(t *testing.T) {
	var a Account
	a.Open(nil)
	var numbers []uint32
	hold := func() {
		err := a.AddAndSend(&Hold{}, Location{}, func(number, _ uint32) error {
			numbers = append(numbers, number)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	hold()
	a.lastHold = math.MaxUint32 - 1
	hold()
	hold()
	if want := []uint32{1, math.MaxUint32, 2}; !slices.Equal(numbers, want) {
		t.Errorf("the numbers are %d, want %d", numbers, want)
	}
}
