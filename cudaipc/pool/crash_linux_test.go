package pool

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func contextWithLimit() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), limit)
}

// producer is a store with a pool, and the stream that fills chunks.
type producer struct {
	store  *shmstore.Store
	pool   *Pool
	mover  *mover
	arenas map[uint32]cudaipc.Arena
	seed   uint64
}

func newProducer(t *testing.T, opts Options) *producer {
	t.Helper()
	machine := newMachine(t, emul.Options{})
	p := &producer{arenas: make(map[uint32]cudaipc.Arena)}
	opts.OnArena = func(number uint32, arena cudaipc.Arena) { p.arenas[number] = arena }
	opts.OnArenaGone = func(number uint32) { delete(p.arenas, number) }
	p.pool = machine.pool(t, opts)
	p.store = newStore(t, shmstore.Shared)
	var err error
	if p.mover, err = newMover(machine); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.mover.close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// check checks both memories.
func (p *producer) check(t *testing.T) {
	t.Helper()
	wantClean(t, p.store.Check())
	wantClean(t, p.pool.Check())
}

// put makes an object with a chunk, and writes to both memories.
func (p *producer) put(deviceBytes int64, charge shmstore.ReaderSet) (shmstore.Handle, Chunk, error) {
	r, piece, err := p.store.ReserveOn(p.pool, deviceBytes, 100, codec.IDRaw, charge)
	if err != nil {
		return shmstore.Handle{}, Chunk{}, err
	}
	c := p.pool.Chunk(piece)
	p.seed++
	if err := p.mover.write(c, p.seed); err != nil {
		r.Abort()
		return shmstore.Handle{}, c, err
	}
	place{Arena: c.Arena, Bytes: uint32(c.Bytes), Offset: c.Offset, Seed: p.seed}.encode(r.Bytes())
	h, err := r.Commit(len(r.Bytes()), 0)
	return h, c, err
}

func (p *producer) mustPut(t *testing.T, deviceBytes int64, charge shmstore.ReaderSet) (shmstore.Handle, Chunk) {
	t.Helper()
	h, c, err := p.put(deviceBytes, charge)
	if err != nil {
		t.Fatal(err)
	}
	return h, c
}

// introduce sends all arenas to a child.
func (p *producer) introduce(c *child) error {
	for number, arena := range p.arenas {
		h := shmstore.Handle{Gen: 1, Slot: number, Size: uint64(arena.Bytes())}
		if err := c.ask(askArena, h, arena.FD()); err != nil {
			return err
		}
	}
	return nil
}

// oneArena configures a pool of two large pieces.
var oneArena = Options{ArenaBytes: minArenaBytes, MaxBytes: minArenaBytes, Slots: 64}

// TestKilledAtFaultpoints kills a reader process at each fault point while it reads, or holds, an
// object with a chunk. After its removal, not before, the objects that it held can be evicted;
// objects that another reader holds stay.
func TestKilledAtFaultpoints(t *testing.T) {
	for _, tc := range []struct {
		point    string
		admitted bool
		raced    bool // the reader may die before the grant, which then fails
		command  byte
	}{
		{point: "attach-before-ledger"},
		{point: "attach-ledger-sent", admitted: true, raced: true},
		{point: "attach-granted", admitted: true},
		{point: "pin-raised", admitted: true, command: askPin},
		{point: "lease-taken", admitted: true, command: askPin},
		{point: "lease-taken:2", admitted: true, command: askTake},
		{point: "before-release", admitted: true, command: askRead},
	} {
		t.Run(tc.point, func(t *testing.T) {
			p := newProducer(t, oneArena)
			half := p.pool.MaxBytes()
			other, err := p.store.DeclareReader("other")
			if err != nil {
				t.Fatal(err)
			}
			kept, keptChunk := p.mustPut(t, half/2, shmstore.Readers(other.ID()))
			keptSeed := p.seed
			lease, err := other.Take(kept)
			if err != nil {
				t.Fatal(err)
			}

			c := startChild(t, tc.point)
			id, err := p.store.Admit(c.conn)
			admitted := err == nil
			if admitted != tc.admitted && !tc.raced {
				t.Fatalf("Admit: %v", err)
			}
			held := 0
			if tc.command != 0 {
				if err := p.introduce(c); err != nil {
					t.Fatal(err)
				}
				for i := 0; err == nil; i++ {
					if i == 2 {
						t.Fatal("the child passed its faultpoint")
					}
					h, _ := p.mustPut(t, half/2, shmstore.Readers(id))
					held++
					err = c.ask(tc.command, h)
				}
			}
			c.awaitDeath(t)
			p.check(t)
			if p.store.FreeUnused(); p.pool.Pieces() != 1+held {
				t.Errorf("%d pieces are in use before the dead is removed, want its %d and another one", p.pool.Pieces(), held)
			}
			if admitted {
				if err := p.store.RemoveReader(id); err != nil {
					t.Fatal(err)
				}
			}
			for range 3 { // all chunks are reused, except the other reader's
				p.mustPut(t, half, 0)
				p.check(t)
			}
			if err := p.mover.look(keptChunk.Ptr, keptChunk.Bytes, keptSeed); err != nil {
				t.Errorf("the other reader's chunk: %v", err)
			}
			p.store.FreeUnused()
			if st := p.pool.Stats(); st.Pieces != 1 || st.UsedBytes != half/2 {
				t.Errorf("%d pieces of %d bytes are in use, want the one of the other reader", st.Pieces, st.UsedBytes)
			}
			lease.Release()
			p.store.FreeUnused()
			if left := p.store.Stats().Objects; left != 0 || p.pool.Stats().UsedBytes != 0 || p.pool.Pieces() != 0 {
				t.Errorf("%d objects and %d pieces are left", left, p.pool.Pieces())
			}
			p.check(t)
		})
	}
}

// TestChunksAreReusedWhenTheyAreReleased has a reader in another process hold chunks and check
// their contents repeatedly, while all other chunks are reused.
func TestChunksAreReusedWhenTheyAreReleased(t *testing.T) {
	p := newProducer(t, oneArena)
	c := startChild(t, "")
	id, err := p.store.Admit(c.conn)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.introduce(c); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	held, full := 0, 0
	for range 400 {
		switch random.IntN(8) {
		case 0, 1:
			h, _, err := p.put(random.Int64N(p.pool.MaxBytes()/4), shmstore.Readers(id))
			if errors.Is(err, shmstore.ErrFull) {
				full++
				continue
			}
			if err == nil {
				err = c.ask(askTake, h)
			}
			if err != nil {
				t.Fatal(err)
			}
			held++
		case 2:
			if held == 0 {
				continue
			}
			if err := c.ask(askRelease, shmstore.Handle{}); err != nil {
				t.Fatal(err)
			}
			held--
		case 3:
			if err := c.ask(askLook, shmstore.Handle{}); err != nil {
				t.Fatal(err)
			}
		default: // without readers: the space is reused at once
			if _, _, err := p.put(random.Int64N(p.pool.MaxBytes()), 0); err != nil {
				if !errors.Is(err, shmstore.ErrFull) {
					t.Fatal(err)
				}
				full++
			}
		}
		p.check(t)
	}
	if err := c.ask(askLook, shmstore.Handle{}); err != nil {
		t.Fatal(err)
	}
	p.store.FreeUnused()
	if n := p.pool.Pieces(); n != held || full == 0 || p.store.Stats().DeviceEvictedTotal == 0 {
		t.Errorf("%d pieces are in use, the reader holds %d; full %d times; %d evicted", n, held, full, p.store.Stats().DeviceEvictedTotal)
	}
	if err := unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0); err != nil {
		t.Fatal(err)
	}
	c.awaitDeath(t)
	if err := p.store.RemoveReader(id); err != nil {
		t.Fatal(err)
	}
	p.store.FreeUnused()
	if left := p.store.Stats().Objects; left != 0 || p.pool.Pieces() != 0 {
		t.Errorf("%d objects and %d pieces are left of the dead", left, p.pool.Pieces())
	}
	p.check(t)
}
