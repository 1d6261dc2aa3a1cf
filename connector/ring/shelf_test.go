package ring

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// counted is a payload that knows how often it was released.
type counted struct{ times int }

func (c *counted) Bytes() []byte { return nil }
func (c *counted) Release()      { c.times++ }

func (c *counted) want(t *testing.T, times int) {
	t.Helper()
	if c.times != times {
		t.Errorf("released %d times, want %d", c.times, times)
	}
}

// fixture is a shelf in a table.
type fixture struct {
	table *Table
	owner *Owner
	shelf *Shelf
	mem   *memory
}

func newFixture() *fixture {
	f := &fixture{table: NewTable(0, slog.New(slog.DiscardHandler)), mem: &memory{slots: make(map[uint64]*value)}}
	f.owner = f.table.Owner("")
	f.shelf = f.table.Shelf(f.table.NewRange(), fakeClaims{f.mem.open(1)})
	return f
}

func (f *fixture) reader() (*Reader, *file) {
	r, own := f.table.Reader(), f.mem.open(2)
	r.Open(f.shelf, fakeWitness{own})
	return r, own
}

// place has the table hear of a value.
func (f *fixture) place(t *testing.T, number uint64) *counted {
	t.Helper()
	p := &counted{}
	if err := f.owner.PutOn(f.shelf, number, Now(), modelEdge, "k", p); err != nil {
		t.Fatal(err)
	}
	return p
}

// locked has the table hear of a value that a reader has locked, and said nothing.
func (f *fixture) locked(t *testing.T) (r *Reader, own *file, number uint64, p *counted) {
	t.Helper()
	r, own = f.reader()
	number = f.shelf.First() + 1
	p = f.place(t, number)
	own.lock(number, false)
	return r, own, number, p
}

// TestGaveBesideALiar: what somebody has taken comes back when it says so, or dies, whoever
// else has said that it has it.
func TestGaveBesideALiar(t *testing.T) {
	gave := (*Reader).Gave
	dies := func(r *Reader, _ uint64) { r.Leave() }
	for name, is := range map[string]struct {
		early bool
		ends  func(r *Reader, number uint64)
	}{
		"placed": {false, gave}, "not placed yet": {true, gave},
		"placed, dies": {false, dies}, "not placed yet, dies": {true, dies},
	} {
		t.Run(name, func(t *testing.T) {
			early := is.early
			f := newFixture()
			honest, own := f.reader()
			liar, _ := f.reader()
			number := f.shelf.First() + 1
			f.mem.published, f.mem.slots[number] = number, &value{}
			var p *counted
			if !early {
				p = f.place(t, number)
			}
			liar.Took(number)
			if !own.lock(number, false) {
				t.Fatal("not to be had")
			}
			liar.Took(number)
			if !early && p.times != 0 {
				t.Fatal("released at the word of somebody who does not have it")
			}
			is.ends(honest, number)
			if early {
				p = f.place(t, number)
			}
			if p.times != 1 {
				t.Errorf("released %d times", p.times)
			}
			liar.Gave(number)
			liar.Leave()
			honest.Leave()
			if p.times != 1 || len(liar.Entries()) != 0 {
				t.Errorf("released %d times, in the end", p.times)
			}
		})
	}
}

// TestTookBesideALiar: what a reader has said that it has comes back when it dies, whoever
// else has said so.
func TestTookBesideALiar(t *testing.T) {
	f := newFixture()
	honest, _, number, p := f.locked(t)
	liar, _ := f.reader()
	honest.Took(number)
	liar.Took(number)
	if n := len(liar.Entries()); n > 0 {
		t.Errorf("who lies has %d values", n)
	}
	liar.Gave(number)
	if p.times != 0 {
		t.Error("released at the word of somebody who does not have it")
	}
	honest.Leave()
	if p.times != 1 {
		t.Errorf("released %d times when its reader had died", p.times)
	}
}

// TestEarlyWithoutEnd: what somebody says of numbers that never come leaves room for what
// others say.
func TestEarlyWithoutEnd(t *testing.T) {
	f := newFixture()
	honest, own := f.reader()
	liar, _ := f.reader()
	first := f.shelf.First()
	for n := range uint64(2 * shelf.Slots) {
		liar.Took(first + 10 + n)
		liar.Gave(first + 10 + n)
	}
	if n := len(f.shelf.early); n > 0 {
		t.Errorf("%d values are expected that nobody has put", n)
	}
	f.mem.published = first + shelf.Slots
	for n := first + 1; n < f.mem.published; n++ {
		liar.Took(n)
	}
	p := f.place(t, f.mem.published) // all the others were left out
	if n := len(f.shelf.early); n > 0 {
		t.Errorf("%d values are expected that never come", n)
	}
	f.mem.published++
	own.lock(f.mem.published, false)
	honest.Gave(f.mem.published)
	if p := f.place(t, f.mem.published); p.times != 1 {
		t.Errorf("what was taken early was released %d times", p.times)
	}
	if p.times != 1 {
		t.Errorf("what was put over was released %d times", p.times)
	}
}

// TestNumbersOutOfOrder: a value under a number that cannot be the next is refused, and
// released.
func TestNumbersOutOfOrder(t *testing.T) {
	f := newFixture()
	lies := f.place(t, f.shelf.First()+5)
	for name, number := range map[string]uint64{
		"again": f.shelf.First() + 5, "before": f.shelf.First() + 4, "the first": f.shelf.First(),
		"below": f.shelf.First() - 1, "above": f.shelf.First() + rangeNumbers, "0": 0,
	} {
		p := &counted{}
		if err := f.owner.PutOn(f.shelf, number, Now(), modelEdge, "k", p); !errors.Is(err, ErrShelf) || p.times != 1 {
			t.Errorf("%s: %v, released %d times", name, err, p.times)
		}
	}
	if lies.times != 0 {
		t.Error("what lay there is gone")
	}
}

func TestMoreThanSlots(t *testing.T) {
	f := newFixture()
	_, own := f.reader()
	number := f.shelf.First()
	for range shelf.Slots {
		number++
		own.lock(number, false) // so that each is out when the next is put
		f.place(t, number)
	}
	p := &counted{}
	if err := f.owner.PutOn(f.shelf, number+1, Now(), modelEdge, "k", p); !errors.Is(err, ErrShelf) || p.times != 1 {
		t.Errorf("a value more than there are slots: %v, released %d times", err, p.times)
	}
}

// TestLaterStays: of two under one key the one stays that was put later, in whatever order
// the table hears of them.
func TestLaterStays(t *testing.T) {
	f := newFixture()
	at := Now()
	put := func(number uint64, at int64) *counted {
		p := &counted{}
		if err := f.owner.PutOn(f.shelf, f.shelf.First()+number, at, modelEdge, "k", p); err != nil {
			t.Fatal(err)
		}
		return p
	}
	second, first := put(1, at-5), put(2, at-9)
	if first.times != 1 || second.times != 0 {
		t.Errorf("released %d and %d times, want the earlier alone", first.times, second.times)
	}
	if third := put(3, at-1); second.times != 1 || third.times != 0 {
		t.Errorf("released %d and %d times, want the earlier alone", second.times, third.times)
	}
}

// TestAwaitShelf: who waits for a key gets what comes to lie on a shelf, and nothing that was
// taken before.
func TestAwaitShelf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture()
		r, own := f.reader()
		got := make(chan Taken)
		go func() {
			g, err := f.table.Await(t.Context(), nil, modelEdge, "k", 0)
			if err != nil {
				t.Error(err)
			}
			got <- g
		}()
		synctest.Wait()
		number := f.shelf.First() + 1
		f.mem.published = number
		own.lock(number, false)
		r.Took(number)
		f.place(t, number)
		synctest.Wait()
		select {
		case <-got:
			t.Fatal("got what somebody has")
		default:
		}
		second := f.place(t, number+1)
		g := <-got
		if g.Payload != connector.Payload(second) || g.Shelf() != f.shelf {
			t.Error("got something else")
		}
		if own.lock(number+1, false) {
			t.Error("what was got is to be had")
		}
		g.Release()
	})
}

// TestWaitForOwner: who looks for a key waits until the table has heard of what was put, the
// owner is gone, or is not believed any more.
func TestWaitForOwner(t *testing.T) {
	for name, until := range map[string]func(t *testing.T, f *fixture, b Behind){
		"it comes":       func(t *testing.T, f *fixture, _ Behind) { f.place(t, f.shelf.First()+1); f.place(t, f.shelf.First()+2) },
		"it is gone":     func(_ *testing.T, f *fixture, _ Behind) { f.shelf.Close() },
		"it is doubtful": func(_ *testing.T, _ *fixture, b Behind) { b.Doubt() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture()
				if all := f.table.Behind(); len(all) != 0 {
					t.Fatalf("behind: %v", all)
				}
				f.mem.published = f.shelf.First() + 2
				all := f.table.Behind()
				if len(all) != 1 {
					t.Fatalf("behind: %v", all)
				}
				ctx, cancel := context.WithCancel(t.Context())
				cancel()
				if err := all[0].Wait(ctx); !errors.Is(err, context.Canceled) {
					t.Errorf("without time: %v", err)
				}
				done := make(chan error)
				for range 2 {
					go func() { done <- all[0].Wait(t.Context()) }()
				}
				synctest.Wait()
				select {
				case err := <-done:
					t.Errorf("not waited for: %v", err)
				default:
				}
				until(t, f, all[0])
				for range 2 {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if all := f.table.Behind(); len(all) != 0 {
					t.Errorf("behind afterwards: %v", all)
				}
			})
		})
	}
}

// TestDoubtEnds: who has come so far as it said is believed again.
func TestDoubtEnds(t *testing.T) {
	f := newFixture()
	f.mem.published = f.shelf.First() + 3
	f.table.Behind()[0].Doubt()
	f.mem.published++
	f.place(t, f.shelf.First()+2)
	if all := f.table.Behind(); len(all) != 0 {
		t.Errorf("who is doubted is waited for: %v", all)
	}
	f.place(t, f.shelf.First()+3)
	if all := f.table.Behind(); len(all) != 1 {
		t.Errorf("who has come so far is not believed: %v", all)
	}
}

// TestGoneWithBoth: what a reader had that the table never heard of, because its owner was gone
// before, is not to be had when the reader has left, too.
func TestGoneWithBoth(t *testing.T) {
	f := newFixture()
	r, own := f.reader()
	other, theirs := f.reader()
	number := f.shelf.First() + 1
	f.mem.published = number
	own.lock(number, false)
	f.shelf.Close()
	f.owner.Close()
	own.close() // by the kernel
	r.Leave()
	if theirs.lock(number, false) {
		t.Error("what a reader had can be had again")
	}
	theirs.close()
	other.Over(f.shelf.First())
	if len(f.mem.files) > 0 || len(f.table.shelves) > 0 {
		t.Error("the shelf stays when nobody can take from it")
	}
}

// TestOutIsTriedAgain: what the table could not claim, because somebody had locked it who gave
// that up without a word, is given back when a reader leaves.
func TestOutIsTriedAgain(t *testing.T) {
	f := newFixture()
	_, own, number, p := f.locked(t)
	other, _ := f.reader()
	if n := f.owner.Cleanup("k"); n != 0 || p.times != 0 {
		t.Errorf("%d values were cleaned up, and released %d times, while somebody has it", n, p.times)
	}
	delete(own.locks, number)
	other.Leave()
	if p.times != 1 {
		t.Errorf("released %d times", p.times)
	}
}

// scarceClaims are of a system that has no memory for a number of locks.
type scarceClaims struct {
	Claims
	fails int
}

func (c *scarceClaims) Claim(number uint64) bool {
	if c.fails > 0 {
		c.fails--
		return false
	}
	return c.Claims.Claim(number)
}

// TestClaimForWantOfMemory: a value that nobody has, and that the table cannot claim, is not
// lost: who gets it can get it again, and what is to be given back is, later.
func TestClaimForWantOfMemory(t *testing.T) {
	always := 1 << 20
	for name, get := range map[string]func(f *fixture) (Taken, error){
		"get":   func(f *fixture) (Taken, error) { return f.table.Get(modelEdge, "k", 0) },
		"await": func(f *fixture) (Taken, error) { return f.table.Await(t.Context(), nil, modelEdge, "k", 0) },
	} {
		f := newFixture()
		c := &scarceClaims{f.shelf.claims, always}
		f.shelf.claims = c
		p := f.place(t, f.shelf.First()+1)
		if _, err := get(f); !errors.Is(err, connector.ErrUnavailable) {
			t.Errorf("%s: error %v, want %v", name, err, connector.ErrUnavailable)
		}
		c.fails = 1 // and then nobody has it
		got, err := get(f)
		if err != nil {
			t.Fatal(err)
		}
		got.Release()
		p.want(t, 1)
	}
	for name, end := range map[string]func(f *fixture){
		"closed":   func(f *fixture) { f.owner.Close() },
		"cleaned":  func(f *fixture) { f.owner.Cleanup("k") },
		"replaced": func(f *fixture) { f.place(t, f.shelf.First()+2) },
	} {
		f := newFixture()
		c := &scarceClaims{f.shelf.claims, always}
		f.shelf.claims = c
		p := f.place(t, f.shelf.First()+1)
		end(f)
		f.table.look()
		p.want(t, 0)
		c.fails = 0
		f.table.look()
		p.want(t, 1)
		if f.table.looking != nil {
			t.Errorf("%s: the table looks for what is not out", name)
		}
	}
}

// TestGivenUpWithoutAWord: what a reader has claimed when the table is to give it back, and
// gives up and says nothing, comes back.
func TestGivenUpWithoutAWord(t *testing.T) {
	f := newFixture()
	_, own, number, p := f.locked(t)
	f.owner.Close()
	f.table.look()
	p.want(t, 0)
	if f.table.looking == nil {
		t.Error("the table does not look for what is out")
	}
	delete(own.locks, number)
	f.table.look()
	p.want(t, 1)
	f.table.Stop()
}
