package shmstore

import (
	"bytes"
	"errors"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func newArena(t testing.TB, sizeBytes int, opts ArenaOptions) *Arena {
	t.Helper()
	a, err := NewArena(make([]byte, sizeBytes), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { wantSound(t, a) })
	return a
}

func wantSound(t testing.TB, a *Arena) {
	t.Helper()
	for _, v := range a.Check() {
		t.Errorf("Check: %v", v)
	}
}

func mustRoom(t testing.TB, a *Arena, size int) Room {
	t.Helper()
	room, err := a.TryReserve(size)
	if err != nil {
		t.Fatal(err)
	}
	return room
}

// result is what a goroutine got from Reserve.
type result struct {
	room Room
	err  error
}

// inLine starts a goroutine that waits for room, and returns when it is in
// line. The line must not be served meanwhile.
func inLine(t testing.TB, a *Arena, size int, done <-chan struct{}) <-chan result {
	t.Helper()
	before := a.Stats().Waiting
	got := make(chan result, 1)
	go func() {
		room, err := a.Reserve(size, done)
		got <- result{room, err}
	}()
	for a.Stats().Waiting == before {
		select {
		case r := <-got:
			t.Fatalf("did not wait for %d bytes: %+v", size, r)
		default:
			runtime.Gosched()
		}
	}
	return got
}

func wantWaiting(t testing.TB, a *Arena, want int) {
	t.Helper()
	if got := a.Stats().Waiting; got != want {
		t.Fatalf("%d are in line, want %d", got, want)
	}
}

func TestArenaRefuses(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{Name: "stage thinker", MaxRooms: 3})
	for _, tc := range []struct {
		name string
		size int
		want error
		text string
	}{
		{name: "nothing", size: 0, want: ErrSize, text: `reserve 0 bytes in arena "stage thinker"`},
		{name: "less than nothing", size: -1, want: ErrSize},
		{name: "more than there is", size: 1025, want: ErrTooLarge, text: "the arena has 1024"},
	} {
		for verb, reserve := range map[string]func(int) (Room, error){
			"TryReserve": a.TryReserve,
			"Reserve":    func(size int) (Room, error) { return a.Reserve(size, nil) },
		} {
			if _, err := reserve(tc.size); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("%s of %s: %v, want %v with %q", verb, tc.name, err, tc.want, tc.text)
			}
		}
	}
	first := mustRoom(t, a, 1)
	mustRoom(t, a, 300)
	for i, tc := range []struct {
		name     string
		size     int
		resource Resource
		text     string
	}{
		{name: "too much in use", size: 700, resource: ResourceRoom, text: "not enough is free (640 of 1024 bytes free, 640 in one piece; 2 rooms, 0 waiting)"},
		{name: "too many", size: 1, resource: ResourceSlots, text: "as many rooms as there may be"},
	} {
		_, err := a.TryReserve(tc.size)
		var full *ArenaFullError
		if !errors.As(err, &full) || !errors.Is(err, ErrFull) || full.Resource != tc.resource || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%s: %v, want %s and %q", tc.name, err, tc.resource, tc.text)
		}
		if i == 0 {
			mustRoom(t, a, 640)
		}
	}
	a.Release(first)
	for _, again := range []Room{first, {}, {Offset: 0, Size: 1}} {
		wantPanic(t, "Release of "+again.String(), func() { a.Release(again) })
	}
}

// TestNewArenaRefuses has wrong options and wrong memory.
func TestNewArenaRefuses(t *testing.T) {
	_, err := NewArena(make([]byte, 1024), ArenaOptions{MaxRooms: -1})
	wantError(t, "a negative bound", err, ErrOptions)
	if _, err := NewArena(nil, ArenaOptions{Name: "void"}); err == nil || !strings.Contains(err.Error(), `new arena "void" of 0 bytes`) {
		t.Errorf("an arena without memory: %v", err)
	}
}

// TestArenaOldRoom: the bytes of somebody else are not given away by a room
// that was released before.
func TestArenaOldRoom(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{})
	old := mustRoom(t, a, 1000)
	a.Release(old)
	again := mustRoom(t, a, 1000)
	if again.Offset != old.Offset || again == old {
		t.Fatalf("%v after %v", again, old)
	}
	wantPanic(t, "Release of an old room", func() { a.Release(old) })
	wantSound(t, a)
	a.Release(again)
}

// TestArenaUsesRoomAgain: what was released last is reserved next, while its bytes are in
// the processors' caches, also where each room is reserved before the last is released.
func TestArenaUsesRoomAgain(t *testing.T) {
	a := newArena(t, 1<<16, ArenaOptions{})
	last := mustRoom(t, a, 1000)
	for range 5 {
		next := mustRoom(t, a, 1000)
		if next.Offset > 1024 {
			t.Errorf("%v, and the room before the last was free", next)
		}
		a.Release(last)
		last = next
	}
	a.Release(last)
}

// TestArenaOverSegment: the books of memory that this process cannot write.
func TestArenaOverSegment(t *testing.T) {
	s, err := CreateSegment("arena", 1<<16)
	if errors.Is(err, ErrUnsupported) {
		t.Skip("no shared memory on this platform")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, err := NewArena(s.Bytes(), ArenaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var rooms []Room
	for {
		room, err := a.TryReserve(1000)
		if err != nil {
			wantError(t, "the last", err, ErrFull)
			break
		}
		if room.Offset%64 != 0 {
			t.Errorf("%v is not on a cache line", room)
		}
		rooms = append(rooms, room)
	}
	if len(rooms) != 64 {
		t.Errorf("%d rooms of 1000 bytes in 64 KiB", len(rooms))
	}
	for _, room := range rooms {
		a.Release(room)
	}
	if s := a.Stats(); s.FreeBytes != 1<<16 || s.LargestFree != 1<<16 || s.Rooms != 0 {
		t.Errorf("after all: %+v", s)
	}
	wantSound(t, a)
}

// TestArenaOrder: first come, first served, however large, and nobody gets past
// those who wait.
func TestArenaOrder(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{})
	first, second := mustRoom(t, a, 512), mustRoom(t, a, 448)
	large := inLine(t, a, 1024, nil)
	small := inLine(t, a, 64, nil)
	_, err := a.TryReserve(64)
	var full *ArenaFullError
	if !errors.As(err, &full) || full.Waiting != 2 || !strings.Contains(err.Error(), "others wait") {
		t.Errorf("past two who wait: %v", err)
	}
	a.Release(first)
	wantWaiting(t, a, 2) // there would be room for the small one
	a.Release(second)
	got := <-large
	if got.err != nil || got.room.Size != 1024 {
		t.Fatalf("the large one: %+v", got)
	}
	wantWaiting(t, a, 1)
	a.Release(got.room)
	if got = <-small; got.err != nil {
		t.Fatal(got.err)
	}
	a.Release(got.room)
}

// TestArenaCancel: whoever gives up lets those behind it in.
func TestArenaCancel(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{})
	held := mustRoom(t, a, 512)
	done := make(chan struct{})
	large := inLine(t, a, 1024, done)
	small := inLine(t, a, 512, nil)
	close(done)
	if got := <-large; !errors.Is(got.err, ErrCanceled) {
		t.Errorf("canceled: %+v", got)
	}
	got := <-small
	if got.err != nil {
		t.Fatal(got.err)
	}
	wantWaiting(t, a, 0)
	if s := a.Stats(); s.CanceledTotal != 1 || s.ReservedTotal != 2 {
		t.Errorf("counted %+v", s)
	}
	a.Release(held)
	a.Release(got.room)
	if room, err := a.Reserve(10, done); err != nil {
		t.Errorf("room that is there needs no waiting: %v", err)
	} else {
		a.Release(room)
	}
}

func TestArenaClose(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{})
	held := mustRoom(t, a, 1000)
	waiting := []<-chan result{inLine(t, a, 100, nil), inLine(t, a, 1, nil)}
	a.Close()
	a.Close()
	for _, w := range waiting {
		if got := <-w; !errors.Is(got.err, ErrClosed) {
			t.Errorf("a waiter after Close: %+v", got)
		}
	}
	_, err := a.TryReserve(1)
	wantError(t, "TryReserve", err, ErrClosed)
	_, err = a.Reserve(1, nil)
	wantError(t, "Reserve", err, ErrClosed)
	a.Release(held)
	if s := a.Stats(); s.Rooms != 0 || s.FreeBytes != 1024 {
		t.Errorf("after the last release: %+v", s)
	}
}

// TestArenaWaitersBounded: a line that is too long takes nobody more.
func TestArenaWaitersBounded(t *testing.T) {
	a := newArena(t, 1024, ArenaOptions{})
	a.waiting = slices.Repeat([]*roomWaiter{{size: 1 << 20}}, maxArenaWaiters)
	_, err := a.Reserve(1, nil)
	wantError(t, "one too many", err, ErrFull)
	a.waiting = nil
}

// TestArenaCheckNames breaks the books.
func TestArenaCheckNames(t *testing.T) {
	for name, tc := range map[string]struct {
		want  string
		spoil func(*Arena)
	}{
		"a room too many":     {InvariantRooms, func(a *Arena) { a.rooms++ }},
		"a byte too few":      {InvariantRooms, func(a *Arena) { a.roomBytes-- }},
		"a lost wake-up":      {InvariantWaiting, func(a *Arena) { a.waiting = []*roomWaiter{{size: 1}} }},
		"waiting for nothing": {InvariantWaiting, func(a *Arena) { a.closed, a.waiting = true, []*roomWaiter{{size: 4096}} }},
	} {
		a, err := NewArena(make([]byte, 4096), ArenaOptions{})
		if err != nil {
			t.Fatal(err)
		}
		mustRoom(t, a, 100)
		wantSound(t, a)
		tc.spoil(a)
		if found := a.Check(); len(found) != 1 || found[0].Invariant != tc.want {
			t.Errorf("%s: found %v, want %q", name, found, tc.want)
		}
	}
}

// arenaModel is what an arena promises, in the plainest terms.
type arenaModel struct {
	arena   *Arena
	buf     []byte
	rooms   []Room
	waiting []modelWaiter
	fills   byte
}

type modelWaiter struct {
	size int
	got  <-chan result
	done chan struct{}
}

func (m *arenaModel) size(t *rapid.T) int {
	return rapid.OneOf(rapid.IntRange(1, min(200, len(m.buf))), rapid.IntRange(1, len(m.buf))).Draw(t, "size")
}

// largest finds the largest free piece by looking at all rooms.
func (m *arenaModel) largest() int {
	byOffset := slices.SortedFunc(slices.Values(m.rooms), func(a, b Room) int { return a.Offset - b.Offset })
	largest, pos := 0, 0
	for _, r := range append(byOffset, Room{Offset: len(m.buf)}) {
		largest = max(largest, r.Offset-pos)
		pos = (r.Offset + r.Size + 63) &^ 63
	}
	return largest
}

// fits reports whether a newcomer would get room.
func (m *arenaModel) fits(size int) bool {
	return size <= m.largest() && len(m.rooms) < m.arena.maxRooms
}

func (m *arenaModel) add(t *rapid.T, room Room, size int) {
	if room.Size != size || room.Offset%64 != 0 || room.Offset+size > len(m.buf) {
		t.Fatalf("%v for %d bytes", room, size)
	}
	for _, other := range m.rooms {
		if room.Offset < other.Offset+other.Size && other.Offset < room.Offset+room.Size {
			t.Fatalf("%v overlaps %v", room, other)
		}
	}
	m.rooms = append(m.rooms, room)
}

// settle takes in what those in line must have got by now, in their order.
func (m *arenaModel) settle(t *rapid.T) {
	for len(m.waiting) > 0 && m.fits(m.waiting[0].size) {
		got := <-m.waiting[0].got
		if got.err != nil {
			t.Fatal(got.err)
		}
		m.add(t, got.room, m.waiting[0].size)
		m.waiting = m.waiting[1:]
	}
}

func (m *arenaModel) TryReserve(t *rapid.T) {
	size := m.size(t)
	want := len(m.waiting) == 0 && m.fits(size)
	room, err := m.arena.TryReserve(size)
	if want != (err == nil) || err != nil && !errors.Is(err, ErrFull) {
		t.Fatalf("%d bytes with %d in line and rooms %v: %v", size, len(m.waiting), m.rooms, err)
	}
	if err == nil {
		m.add(t, room, size)
	}
}

func (m *arenaModel) Reserve(t *rapid.T) {
	size := m.size(t)
	if len(m.waiting) == 0 && m.fits(size) {
		room, err := m.arena.Reserve(size, nil)
		if err != nil {
			t.Fatal(err)
		}
		m.add(t, room, size)
		return
	}
	w := modelWaiter{size: size, done: make(chan struct{})}
	got := make(chan result, 1)
	w.got = got
	go func() {
		room, err := m.arena.Reserve(size, w.done)
		got <- result{room, err}
	}()
	for m.arena.Stats().Waiting == len(m.waiting) {
		select {
		case r := <-got:
			t.Fatalf("did not wait for %d bytes: %+v", size, r)
		default:
			runtime.Gosched()
		}
	}
	m.waiting = append(m.waiting, w)
}

func (m *arenaModel) Release(t *rapid.T) {
	if len(m.rooms) == 0 {
		t.Skip("no room")
	}
	i := rapid.IntRange(0, len(m.rooms)-1).Draw(t, "room")
	m.arena.Release(m.rooms[i])
	m.rooms = slices.Delete(m.rooms, i, i+1)
	m.settle(t)
}

func (m *arenaModel) Cancel(t *rapid.T) {
	if len(m.waiting) == 0 {
		t.Skip("nobody waits")
	}
	i := rapid.IntRange(0, len(m.waiting)-1).Draw(t, "waiter")
	close(m.waiting[i].done)
	if got := <-m.waiting[i].got; !errors.Is(got.err, ErrCanceled) {
		t.Fatalf("canceled: %+v", got)
	}
	m.waiting = slices.Delete(m.waiting, i, i+1)
	m.settle(t)
}

// Check runs after every step.
func (m *arenaModel) Check(t *rapid.T) {
	for _, v := range m.arena.Check() {
		t.Errorf("Check: %v", v)
	}
	s := m.arena.Stats()
	if s.Rooms != len(m.rooms) || s.Waiting != len(m.waiting) || s.LargestFree != int64(m.largest()) || s.UsedBytes+s.FreeBytes != s.Bytes {
		t.Errorf("stats %+v, the model has %d rooms, %d waiting and %d free in one piece", s, len(m.rooms), len(m.waiting), m.largest())
	}
	if !bytes.Equal(m.buf, bytes.Repeat([]byte{m.fills}, len(m.buf))) {
		t.Error("the arena's memory was written to")
	}
}

func TestArenaModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const fills = 0xa5
		buf := bytes.Repeat([]byte{fills}, rapid.IntRange(1, 2000).Draw(t, "bytes"))
		a, err := NewArena(buf, ArenaOptions{MaxRooms: rapid.IntRange(1, 20).Draw(t, "rooms")})
		if err != nil {
			t.Fatal(err)
		}
		m := &arenaModel{arena: a, buf: buf, fills: fills}
		t.Repeat(rapid.StateMachineActions(m))
		a.Close()
		for _, w := range m.waiting {
			if got := <-w.got; !errors.Is(got.err, ErrClosed) {
				t.Fatalf("after Close: %+v", got)
			}
		}
		for _, room := range m.rooms {
			a.Release(room)
		}
		if s := a.Stats(); s.FreeBytes != int64(len(buf)) {
			t.Fatalf("after all: %+v", s)
		}
	})
}

// TestArenaManyWaiters has many goroutines in a small arena. Each writes to its
// room, so that the race detector sees a room that two have, and all must come
// through: a lost wake-up would leave one in line for ever.
func TestArenaManyWaiters(t *testing.T) {
	const goroutines, rounds = 32, 200
	buf := make([]byte, 2048)
	a, err := NewArena(buf, ArenaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	canceled := make(chan struct{})
	close(canceled)
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				size := 1 + (g*97+i*31)%len(buf)
				var done <-chan struct{}
				if i%5 == 0 {
					done = canceled
				}
				room, err := a.Reserve(size, done)
				if errors.Is(err, ErrCanceled) && done != nil {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mine := buf[room.Offset:][:room.Size]
				for j := range mine {
					mine[j] = byte(g)
				}
				if bytes.IndexFunc(mine, func(r rune) bool { return r != rune(g) }) >= 0 {
					t.Errorf("%v has somebody else's bytes", room)
				}
				a.Release(room)
			}
		})
	}
	wg.Wait()
	wantSound(t, a)
	if s := a.Stats(); s.Rooms != 0 || s.Waiting != 0 || s.FreeBytes != int64(len(buf)) {
		t.Errorf("after all: %+v", s)
	}
}
