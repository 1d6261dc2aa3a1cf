package drivertest

import (
	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func testArena(r *rig) {
	for _, size := range []int64{1, r.caps.GranularityBytes, r.caps.GranularityBytes + 1} {
		a := r.arena(size)
		if a.Bytes() < size || a.Bytes()%r.caps.GranularityBytes != 0 {
			r.Errorf("NewArena(%d) has %d bytes, with a granularity of %d", size, a.Bytes(), r.caps.GranularityBytes)
		}
		if a.Base() == 0 || a.FD() < 0 {
			r.Errorf("an arena at %#x with descriptor %d", a.Base(), a.FD())
		}
	}
	a, b := r.arena(mib), r.arena(mib)
	r.fill(a.Base(), 1, mib)
	r.fill(b.Base(), 2, mib)
	r.check("the first of two arenas", a.Base(), 1, mib)
	r.check("the second of two arenas", b.Base(), 2, mib)
	for _, size := range []int64{0, -1} {
		_, err := r.dev.NewArena(size)
		r.wantErr("an arena of no size", err, cudaipc.ErrInvalid)
	}
	_, _, err := r.dev.Export(a.Base())
	r.wantErr("export a handle of an arena", err, cudaipc.ErrUnsupported)
	r.wantErr("free an arena", r.dev.Free(a.Base()), cudaipc.ErrInvalid)
}

// testArenaHere: one arena is mapped twice in a process, and the descriptor stays the caller's.
func testArenaHere(r *rig) {
	a := r.arena(mib)
	fd, err := unix.FcntlInt(uintptr(a.FD()), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		r.Fatal(err)
	}
	b := r.importArena(fd, a.Bytes())
	if err := unix.Close(fd); err != nil {
		r.Errorf("the descriptor was not left to the caller: %v", err)
	}
	if b.FD() != -1 || b.Bytes() != a.Bytes() || b.Base() == a.Base() {
		r.Errorf("imported: descriptor %d, %d bytes at %#x; made: %d bytes at %#x", b.FD(), b.Bytes(), b.Base(), a.Bytes(), a.Base())
	}
	r.fill(a.Base()+kib, 1, kib)
	r.check("the other mapping", b.Base()+kib, 1, kib)
	r.fill(b.Base()+kib, 2, kib)
	r.check("this mapping", a.Base()+kib, 2, kib)
}

// testArenaThere: another process reads and writes an arena of this one, and keeps it after its
// Close here.
func testArenaThere(r *rig) {
	r.need("Arenas")
	other := r.peer()
	a, err := r.dev.NewArena(mib)
	if err != nil {
		r.Fatal(err)
	}
	r.fill(a.Base(), 1, mib)
	there, _ := other.ask(request{Do: doImportArena, Bytes: a.Bytes()}, a.FD())
	other.ask(request{Do: doCheck, Memory: there.Memory, Bytes: mib, Seed: 1})
	other.ask(request{Do: doFill, Memory: there.Memory, Offset: kib, Bytes: kib, Seed: 2})
	r.check("what the other process wrote", a.Base()+kib, 2, kib)
	r.check("what it left alone", a.Base(), 1, kib)
	if err := a.Close(); err != nil {
		r.Fatal(err)
	}
	other.ask(request{Do: doCheck, Memory: there.Memory, Offset: kib, Bytes: kib, Seed: 2})
	other.ask(request{Do: doClose, Memory: there.Memory})
}

// testArenaFromThere: an arena outlives the process that made it.
func testArenaFromThere(r *rig) {
	r.need("Arenas")
	other := r.peer()
	there, fd := other.ask(request{Do: doArena, Bytes: 3 * mib})
	a := r.importArena(fd, there.Bytes)
	other.ask(request{Do: doFill, Memory: there.Memory, Offset: mib, Bytes: mib, Seed: 3})
	r.check("what the other process wrote", a.Base()+mib, 3, mib)
	other.kill()
	r.check("after the other process died", a.Base()+mib, 3, mib)
}

func testNoArena(r *rig) {
	r.need("Arenas")
	a := r.arena(mib)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
		r.Fatal(err)
	}
	defer unix.Close(pipe[0])
	unix.Close(pipe[1])
	for _, c := range []struct {
		name  string
		fd    int
		bytes int64
	}{
		{"a pipe", pipe[0], a.Bytes()},
		{"other shared memory", r.memfd(int(a.Bytes())), a.Bytes()},
		{"a closed descriptor", pipe[1], a.Bytes()},
		{"no descriptor", -1, a.Bytes()},
		{"a size that is too large", a.FD(), a.Bytes() + r.caps.GranularityBytes},
		{"no size", a.FD(), 0},
		{"a negative size", a.FD(), -1},
	} {
		_, err := r.dev.ImportArena(c.fd, c.bytes)
		r.wantErr("import "+c.name, err, cudaipc.ErrStaleHandle, cudaipc.ErrInvalid)
	}
	if err := r.dev.Err(); err != nil {
		r.Errorf("the device has failed after that: %v", err)
	}
}

func testWithoutArenas(r *rig) {
	r.needMissing("Arenas")
	_, err := r.dev.NewArena(mib)
	r.wantErr("NewArena", err, cudaipc.ErrUnsupported)
	_, err = r.dev.ImportArena(0, mib)
	r.wantErr("ImportArena", err, cudaipc.ErrUnsupported)
}
