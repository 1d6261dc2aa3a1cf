package drivertest

import (
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func testAllocation(r *rig) {
	a, b := r.alloc(mib), r.alloc(mib)
	r.fill(a, 1, mib)
	r.fill(b, 2, mib)
	r.check("the first of two allocations", a, 1, mib)
	r.check("the second of two allocations", b, 2, mib)
	for _, size := range []int64{0, -1} {
		_, err := r.dev.Alloc(size)
		r.wantErr("an allocation of no size", err, cudaipc.ErrInvalid)
	}
	p, err := r.dev.Alloc(kib)
	if err != nil {
		r.Fatal(err)
	}
	r.wantErr("free the middle of an allocation", r.dev.Free(p+256), cudaipc.ErrInvalid)
	if err := r.dev.Free(p); err != nil {
		r.Errorf("Free: %v", err)
	}
	r.wantErr("free twice", r.dev.Free(p), cudaipc.ErrInvalid)
}

// export returns a handle, and the offset of p in its allocation.
func (r *rig) export(p cudaipc.Ptr) (h cudaipc.Handle, offset int64) {
	r.Helper()
	r.need("Handles")
	h, offset, err := r.dev.Export(p)
	if err != nil {
		r.Fatalf("Export: %v", err)
	}
	return h, offset
}

func (r *rig) importHandle(h []byte) cudaipc.Ptr {
	r.Helper()
	base, sizeBytes, err := r.dev.Import(cudaipc.Handle(h))
	if err != nil || sizeBytes < 1 {
		r.Fatalf("Import: %d bytes, %v", sizeBytes, err)
	}
	return base
}

// testHandleThere: a handle names an allocation, and the offset an address in it.
func testHandleThere(r *rig) {
	r.need("Handles")
	other := r.peer()
	p := r.alloc(mib)
	r.fill(p, 1, mib)
	whole, atBase := r.export(p)
	part, offset := r.export(p + 3*kib)
	if whole != part || offset-atBase != 3*kib {
		r.Errorf("a place 3 KiB further has offset %d, after %d; the handles are the same: %t", offset, atBase, whole == part)
	}
	there, _ := other.ask(request{Do: doImport, Handle: part[:]})
	if there.Bytes < atBase+mib {
		r.Errorf("it is %d bytes large there, and %d were made at %d", there.Bytes, mib, atBase)
	}
	other.ask(request{Do: doCheck, Memory: there.Memory, Offset: atBase, Bytes: mib, Seed: 1})
	other.ask(request{Do: doFill, Memory: there.Memory, Offset: offset, Bytes: kib, Seed: 2})
	r.check("what the other process wrote", p+3*kib, 2, kib)
	r.check("what it left alone", p, 1, 3*kib)
	other.ask(request{Do: doClose, Memory: there.Memory})
}

func testHandleFromThere(r *rig) {
	r.need("Handles")
	other := r.peer()
	there, _ := other.ask(request{Do: doAlloc, Bytes: mib, Offset: 2 * kib})
	other.ask(request{Do: doFill, Memory: there.Memory, Offset: 2 * kib, Bytes: kib, Seed: 4})
	base := r.importHandle(there.Handle)
	at := base + cudaipc.Ptr(there.Offset)
	r.check("what the other process wrote", at, 4, kib)
	r.fill(at, 5, kib)
	other.ask(request{Do: doCheck, Memory: there.Memory, Offset: 2 * kib, Bytes: kib, Seed: 5})

	r.wantErr("free memory of another process", r.dev.Free(base), cudaipc.ErrInvalid)
	_, _, err := r.dev.Export(at)
	r.wantErr("export memory of another process", err, cudaipc.ErrInvalid, cudaipc.ErrUnsupported)
	r.check("after that", at, 5, kib)
	if err := r.dev.Unimport(base); err != nil {
		r.Errorf("Unimport: %v", err)
	}
}

func testHandleHere(r *rig) {
	h, _ := r.export(r.alloc(mib))
	_, _, err := r.dev.Import(h)
	r.wantErr("import one's own handle", err, cudaipc.ErrOwnHandle)
}

// testHandleCounted: each Import returns the same address, until it was undone as often.
func testHandleCounted(r *rig) {
	r.need("Handles")
	other := r.peer()
	there, _ := other.ask(request{Do: doAlloc, Bytes: mib})
	other.ask(request{Do: doFill, Memory: there.Memory, Bytes: kib, Seed: 6})
	base := r.importHandle(there.Handle)
	if again := r.importHandle(there.Handle); again != base {
		r.Errorf("the same handle is at %#x, and at %#x", base, again)
	}
	if err := r.dev.Unimport(base); err != nil {
		r.Errorf("Unimport: %v", err)
	}
	r.check("after one of two was undone", base+cudaipc.Ptr(there.Offset), 6, kib)
	if err := r.dev.Unimport(base); err != nil {
		r.Errorf("Unimport: %v", err)
	}
	r.wantErr("undo a third of two", r.dev.Unimport(base), cudaipc.ErrInvalid)
	base = r.importHandle(there.Handle)
	r.check("imported anew", base+cudaipc.Ptr(there.Offset), 6, kib)
	if err := r.dev.Unimport(base); err != nil {
		r.Errorf("Unimport: %v", err)
	}
}

func testHandleFreed(r *rig) {
	r.need("Handles")
	other := r.peer()
	there, _ := other.ask(request{Do: doAlloc, Bytes: mib})
	other.ask(request{Do: doClose, Memory: there.Memory})
	_, _, err := r.dev.Import(cudaipc.Handle(there.Handle))
	r.wantErr("import memory that was freed", err, cudaipc.ErrStaleHandle)
}

func testHandleOfTheDead(r *rig) {
	r.need("Handles")
	other := r.peer()
	there, _ := other.ask(request{Do: doAlloc, Bytes: mib})
	other.kill()
	_, _, err := r.dev.Import(cudaipc.Handle(there.Handle))
	r.wantErr("import memory of a dead process", err, cudaipc.ErrStaleHandle)
}

func testNoHandle(r *rig) {
	h, _ := r.export(r.alloc(mib))
	bad := h
	for i := range bad {
		bad[i] = ^bad[i]
	}
	for what, h := range map[string]cudaipc.Handle{"nothing": {}, "noise": bad} {
		_, _, err := r.dev.Import(h)
		r.wantErr("import "+what, err, cudaipc.ErrStaleHandle)
	}
	if err := r.dev.Err(); err != nil {
		r.Errorf("the device has failed after that: %v", err)
	}
}

func testWithoutHandles(r *rig) {
	r.needMissing("Handles")
	_, _, err := r.dev.Export(r.alloc(mib))
	r.wantErr("Export", err, cudaipc.ErrUnsupported)
	_, _, err = r.dev.Import(cudaipc.Handle{})
	r.wantErr("Import", err, cudaipc.ErrUnsupported)
}
