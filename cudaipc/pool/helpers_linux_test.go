package pool

import (
	"maps"
	"slices"
	"testing"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// small configures a pool that a test can fill: three arenas of 64 KiB.
var small = Options{ArenaBytes: minArenaBytes, MaxBytes: 3 * minArenaBytes, Slots: 32}

// machine is an emulated GPU; the end of the test checks that it is empty.
type machine struct {
	driver *emul.Driver
	cudaipc.Device
}

func newMachine(t testing.TB, opts emul.Options) *machine {
	t.Helper()
	ignored := goleak.IgnoreCurrent()
	opts.GranularityBytes = 4096
	driver, err := emul.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	device, err := driver.Open(cudaipc.UUID{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := device.Close(); err != nil {
			t.Error(err)
		}
		if usage := driver.Usage(); usage != (cudaipc.Usage{}) {
			t.Errorf("left on the GPU: %+v", usage)
		}
		if err := driver.Close(); err != nil {
			t.Error(err)
		}
		goleak.VerifyNone(t, ignored)
	})
	return &machine{driver: driver, Device: device}
}

// pool makes a pool that is checked and closed at the end of the test.
func (m *machine) pool(t testing.TB, opts Options) *Pool {
	t.Helper()
	p, err := New(m, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wantClean(t, p.Check())
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// wantClean fails the test if an invariant is broken.
func wantClean[V shmstore.Violation | Violation](t interface{ Errorf(string, ...any) }, found []V) {
	for _, v := range found {
		t.Errorf("Check: %v", v)
	}
}

func mustAllocate(t testing.TB, dev shmstore.Device, sizeBytes int64) uint32 {
	t.Helper()
	piece, ok := dev.Allocate(sizeBytes)
	if !ok {
		t.Fatalf("no space for %d bytes", sizeBytes)
	}
	return piece
}

// newStore makes a store that is checked, cleared and closed at the end of the test, before the
// pools that were made earlier.
func newStore(t testing.TB, memory shmstore.Memory) *shmstore.Store {
	t.Helper()
	s, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20, Memory: memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		wantClean(t, s.Check())
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// mustReserveOn reserves 100 bytes, and a piece of a device.
func mustReserveOn(t testing.TB, s *shmstore.Store, dev shmstore.Device, deviceBytes int64, charge shmstore.ReaderSet) (shmstore.Reservation, uint32) {
	t.Helper()
	r, piece, err := s.ReserveOn(dev, deviceBytes, 100, codec.IDRaw, charge)
	if err != nil {
		t.Fatal(err)
	}
	return r, piece
}

func mustCommit(t testing.TB, r shmstore.Reservation) shmstore.Handle {
	t.Helper()
	h, err := r.Commit(100, 0)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// model checks the promises of a pool: pieces fit its arenas, and no two pieces overlap.
type model struct {
	p        *Pool
	inUse    map[uint32]Chunk
	late     map[uint32]Chunk  // freed, with a stream that still writes
	last     map[uint32]uint32 // generations by slot
	numbers  map[uint32]bool   // numbers of the present arenas
	lastEver uint32
}

func (m *model) Allocate(t *rapid.T) {
	sizeBytes := rapid.Int64Range(0, m.p.MaxBytes()+1).Draw(t, "bytes")
	piece, ok := m.p.Allocate(sizeBytes)
	if !ok && len(m.inUse)+len(m.late) < m.p.opts.Slots && sizeBytes <= m.p.MaxBytes() && m.p.Grow(sizeBytes) {
		if piece, ok = m.p.Allocate(sizeBytes); !ok {
			t.Fatalf("no space for %d bytes in a new arena", sizeBytes)
		}
	}
	if !ok {
		if len(m.inUse)+len(m.late) == 0 && sizeBytes <= m.p.MaxBytes() {
			t.Fatalf("an empty pool has no space for %d bytes", sizeBytes)
		}
		return
	}
	c := m.p.Chunk(piece)
	_, twice := m.inUse[piece]
	if _, late := m.late[piece]; twice || late || sizeBytes > m.p.MaxBytes() || c.Bytes != sizeBytes || c.Number != piece || !m.numbers[c.Arena] {
		t.Fatalf("%d bytes are piece %d, given out before: %t, %+v", sizeBytes, piece, twice, c)
	}
	if c.Generation != m.last[piece]+1 || c.Ready.Reached(c.Generation) || c.Fault.Host.Load() == c.Generation {
		t.Fatalf("piece %d has generation %d after %d, ready for %d", piece, c.Generation, m.last[piece], c.Ready.Host.Load())
	}
	for _, other := range slices.Concat(slices.Collect(maps.Values(m.inUse)), slices.Collect(maps.Values(m.late))) {
		if c.Arena == other.Arena && c.Offset < other.Offset+other.Bytes && other.Offset < c.Offset+c.Bytes {
			t.Fatalf("%+v reaches into %+v", c, other)
		}
	}
	m.inUse[piece], m.last[piece] = c, c.Generation
}

func (m *model) some(t *rapid.T) uint32 {
	if len(m.inUse) == 0 {
		t.Skip("nothing in use")
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(m.inUse))).Draw(t, "piece")
}

func (m *model) Free(t *rapid.T) {
	piece := m.some(t)
	m.p.Free(piece)
	if c := m.inUse[piece]; !c.Ready.Reached(c.Generation) {
		m.late[piece] = c
	}
	delete(m.inUse, piece)
}

// Settle ends the stream that writes to a freed piece.
func (m *model) Settle(t *rapid.T) {
	for piece, c := range m.late {
		c.Ready.Host.Store(c.Generation)
		delete(m.late, piece)
		return
	}
	t.Skip("nothing is late")
}

func (m *model) Ready(t *rapid.T) {
	c := m.inUse[m.some(t)]
	c.Ready.Host.Store(c.Generation)
}

func (m *model) Fail(t *rapid.T) {
	piece := m.some(t)
	c := m.inUse[piece]
	if c.Ready.Reached(c.Generation) {
		m.p.slots.piece(piece).Fail() // the piece is ready: Fail has no effect
		return
	}
	m.p.slots.piece(piece).Fail()
	if c.Fault.Host.Load() != c.Generation || !c.Ready.Reached(c.Generation) {
		t.Fatalf("piece %d of generation %d failed in %d and is ready for %d", piece, c.Generation, c.Fault.Host.Load(), c.Ready.Host.Load())
	}
}

// Check runs after every step.
func (m *model) Check(t *rapid.T) {
	wantClean(t, m.p.Check())
	st := m.p.Stats()
	if st.Pieces != len(m.inUse) || m.p.Pieces() != len(m.inUse) || st.Arenas != len(m.numbers) || st.ArenaBytes > st.MaxBytes {
		t.Errorf("%d pieces are in use, %d arenas there; Stats say %+v", len(m.inUse), len(m.numbers), st)
	}
}

// free frees a piece that no stream writes to.
func free(p *Pool, piece uint32) {
	p.slots.piece(piece).Fail()
	p.Free(piece)
}
