package drivertest

import (
	"math"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

const (
	wordsBytes = 4 * kib
	wordGap    = 64
)

// words registers memory for words.
//
// A driver may wait for all streams of a device when memory is made or freed. So a test makes its
// objects before a stream waits, and ends the wait last.
func (r *rig) words(n int) []cudaipc.Word {
	r.Helper()
	r.need("Words")
	_, h := r.host(wordsBytes)
	all := make([]cudaipc.Word, n)
	for i := range all {
		all[i] = h.Word(int64(i) * wordGap)
	}
	return all
}

// testWriteBehindCopy: a reader that sees the word sees the copy before it.
func testWriteBehindCopy(r *rig) {
	const n, rounds = 4 * mib, 8
	w := r.words(1)[0]
	mem, h := r.host(n)
	q, s := r.alloc(n), r.stream()
	sources := [2]cudaipc.Ptr{r.alloc(n), r.alloc(n)}
	var ends [2][]byte // the last bytes are written last
	for i, p := range sources {
		data := pattern(byte(i), n)
		ends[i] = data[n-kib:]
		if err := transfer(r.ctx, r.dev, p, data, true); err != nil {
			r.Fatal(err)
		}
	}
	for i := range uint32(rounds) {
		r.submit(s, copyOp(q, sources[i%2], n), copyOp(h.Ptr(0), q, n), writeOp(w, i+1))
		r.await(w, i+1)
		if err := same(mem[n-kib:], ends[i%2]); err != nil {
			r.Fatalf("round %d: the word was written too early: %v", i, err)
		}
	}
}

// testWaitHoldsBack: a wait delays later operations of its stream, and no other stream.
func testWaitHoldsBack(r *rig) {
	words := r.words(3)
	gate, behind, beside := words[0], words[1], words[2]
	held, free, e := r.stream(), r.stream(), r.event()
	r.submit(held, waitOp(gate, 1), writeOp(behind, 1), recordOp(e))
	r.submit(free, writeOp(beside, 1))
	r.synchronize(free)
	if beside.Host.Load() != 1 {
		r.Error("a synchronized stream has not written its word")
	}
	r.wantBlocked(held)
	done, err := e.Done()
	if done || err != nil || behind.Host.Load() != 0 {
		r.Errorf("behind the wait: event %t (%v), word %d", done, err, behind.Host.Load())
	}
	gate.Host.Store(1)
	r.synchronize(held)
	if done, err = e.Done(); !done || err != nil || behind.Host.Load() != 1 {
		r.Errorf("after the wait: event %t (%v), word %d", done, err, behind.Host.Load())
	}
}

func testWordsInACircle(r *rig) {
	const last = math.MaxUint32
	words := r.words(2)
	w, out := words[0], words[1]
	s, e := r.stream(), r.event()
	n := uint32(0)
	for _, c := range []struct{ word, v uint32 }{
		{7, 7},
		{8, 7},
		{6, 7},
		{2, last - 1},
		{last - 1, 2},
		{1<<31 - 1, 0},
		{1 << 31, 0},
		{0, 1 << 31},
		{1, 1 << 31},
	} {
		n++
		w.Host.Store(c.word)
		r.submit(s, waitOp(w, c.v), writeOp(out, n), recordOp(e))
		if cudaipc.Reached(c.word, c.v) {
			r.synchronize(s)
		} else {
			r.wantBlocked(s)
			if done, err := e.Done(); done || err != nil {
				r.Fatalf("word %d, waiting for %d: passed (%v)", c.word, c.v, err)
			}
		}
		w.Host.Store(c.v)
		r.synchronize(s)
		if got := out.Host.Load(); got != n {
			r.Errorf("word %d, waiting for %d: then %d, want %d", c.word, c.v, got, n)
		}
	}
}

// testTurns: two streams and the CPU wait for each other in turn.
func testTurns(r *rig) {
	const rounds = 50
	words := r.words(3)
	a, b, cpu := words[0], words[1], words[2]
	s, u := r.stream(), r.stream()
	for i := range uint32(rounds) {
		r.submit(s, waitOp(cpu, i+1), writeOp(a, i+1))
		r.submit(u, waitOp(a, i+1), writeOp(b, i+1))
	}
	for i := range uint32(rounds) {
		if got := b.Host.Load(); got != i {
			r.Errorf("round %d began at %d", i, got)
		}
		cpu.Host.Store(i + 1)
		r.await(b, i+1)
	}
	r.synchronize(s)
	r.synchronize(u)
}

// testWordFromThere: a stream waits for a word that a stream of another process writes, in shared
// memory.
func testWordFromThere(r *rig) {
	r.need("Words")
	r.need("RegisterHost")
	fd := r.memfd(wordsBytes)
	readOnly := r.caps.RegisterReadOnly
	prot := unix.PROT_READ
	if !readOnly {
		prot |= unix.PROT_WRITE
	}
	h, err := r.dev.RegisterHost(r.pagesOf(fd, wordsBytes, prot), readOnly)
	if err != nil {
		r.Fatal(err)
	}
	r.closeLater("shared memory", h.Close)
	own := r.words(1)[0]
	theirs, s, e := h.Word(wordGap), r.stream(), r.event()
	other := r.peer()
	there, _ := other.ask(request{Do: doRegister, Bytes: wordsBytes}, fd)
	r.Cleanup(func() {
		if r.Failed() {
			_, _ = unix.Pwrite(fd, []byte{5}, wordGap) // as releaseOnFailure does
		}
	})
	if err := s.Submit(waitOp(theirs, 5), writeOp(own, 1), recordOp(e)); err != nil {
		r.Fatal(err)
	}
	other.ask(request{Do: doWrite, Memory: there.Memory, Offset: wordGap, Value: 4})
	r.wantBlocked(s)
	if done, err := e.Done(); done || err != nil {
		r.Errorf("the wait ended too early: %v", err)
	}
	other.ask(request{Do: doWrite, Memory: there.Memory, Offset: wordGap, Value: 5})
	r.synchronize(s)
	if theirs.Host.Load() != 5 || own.Host.Load() != 1 {
		r.Errorf("words %d and %d", theirs.Host.Load(), own.Host.Load())
	}
}

func testBadWords(r *rig) {
	w := r.words(1)[0]
	plain := r.pages(4 * kib)
	s := r.stream()
	for what, dev := range map[string]cudaipc.Ptr{
		"no word":                 0,
		"a word across words":     w.Dev + 2,
		"a word in plain memory":  cudaipc.HostPtr(plain),
		"a word behind the words": w.Dev + 1<<40,
	} {
		bad := cudaipc.Word{Host: w.Host, Dev: dev}
		r.wantErr("write "+what, s.Submit(writeOp(bad, 1)), cudaipc.ErrInvalid)
		r.wantErr("wait for "+what, s.Submit(waitOp(bad, 1)), cudaipc.ErrInvalid)
	}
}

func testWithoutWords(r *rig) {
	r.needMissing("Words")
	_, h := r.host(wordsBytes)
	s := r.stream()
	r.wantErr("OpWrite", s.Submit(writeOp(h.Word(0), 1)), cudaipc.ErrUnsupported)
	r.wantErr("OpWait", s.Submit(waitOp(h.Word(0), 0)), cudaipc.ErrUnsupported)
	r.synchronize(s)
}
