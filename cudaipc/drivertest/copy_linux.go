package drivertest

import (
	"math"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// testCopies copies from registered memory to the device, within it, and back.
func testCopies(r *rig) {
	mem, h := r.host(2 * mib)
	a, b, s := r.alloc(mib), r.alloc(mib), r.stream()
	for i, n := range []int64{1, 3, 4 * kib, mib - 1, mib} {
		seed := byte(i)
		clear(mem)
		copy(mem, pattern(seed, n))
		r.submit(s,
			copyOp(a, h.Ptr(0), n),
			copyOp(b, a, n),
			copyOp(h.Ptr(mib), b, n))
		r.synchronize(s)
		if err := same(mem[mib:mib+n], pattern(seed, n)); err != nil {
			r.Errorf("%d bytes around: %v", n, err)
		}
		if n < mib && mem[mib+n] != 0 {
			r.Errorf("a copy of %d bytes wrote beyond its end", n)
		}
	}
	r.submit(s, copyOp(a, b, 0))
	r.synchronize(s)
}

// testRows packs columns of a matrix, and spreads them again.
func testRows(r *rig) {
	const rows, width, pitch, left = 37, 100, 256, 16
	matrix, packed, s := r.alloc(rows*pitch), r.alloc(rows*width), r.stream()
	r.fill(matrix, 1, rows*pitch)
	r.submit(s, cudaipc.Op{
		Kind: cudaipc.OpCopy2D, Dst: packed, Src: matrix + left, Bytes: width, Rows: rows,
		DstPitch: width, SrcPitch: pitch,
	})
	r.synchronize(s)
	all, want := pattern(1, rows*pitch), make([]byte, 0, rows*width)
	for i := range rows {
		want = append(want, all[i*pitch+left:][:width]...)
	}
	got := make([]byte, rows*width)
	if err := transfer(r.ctx, r.dev, packed, got, false); err != nil {
		r.Fatal(err)
	}
	if err := same(got, want); err != nil {
		r.Errorf("packed: %v", err)
	}

	r.fill(packed, 2, rows*width)
	r.submit(s, cudaipc.Op{
		Kind: cudaipc.OpCopy2D, Dst: matrix + left, Src: packed, Bytes: width, Rows: rows,
		DstPitch: pitch, SrcPitch: width,
	})
	r.synchronize(s)
	for i, row := 0, pattern(2, rows*width); i < rows; i++ {
		copy(all[i*pitch+left:][:width], row[i*width:])
	}
	got = make([]byte, rows*pitch)
	if err := transfer(r.ctx, r.dev, matrix, got, false); err != nil {
		r.Fatal(err)
	}
	if err := same(got, all); err != nil {
		r.Errorf("spread: %v", err)
	}
}

func testBadCopies(r *rig) {
	a, b, s := r.alloc(mib), r.alloc(mib), r.stream()
	rows := func(bytes, rows, dst, src int64) cudaipc.Op {
		return cudaipc.Op{Kind: cudaipc.OpCopy2D, Dst: b, Src: a, Bytes: bytes, Rows: rows, DstPitch: dst, SrcPitch: src}
	}
	for what, op := range map[string]cudaipc.Op{
		"a copy of negative size":      copyOp(b, a, -1),
		"rows of negative size":        rows(-1, 2, 16, 16),
		"a negative number of rows":    rows(16, -1, 16, 16),
		"rows that overlap at the end": rows(16, 2, 15, 16),
		"rows that overlap in front":   rows(16, 2, 16, 15),
		"rows beyond all memory":       rows(16, math.MaxInt64, math.MaxInt64, 16),
		"an operation without a kind":  {},
		"an operation of no kind":      {Kind: 99},
		"a record of no event":         {Kind: cudaipc.OpRecord},
		"an await of no event":         {Kind: cudaipc.OpAwait},
	} {
		r.wantErr(what, s.Submit(op), cudaipc.ErrInvalid)
	}
	r.synchronize(s)
	r.fill(a, 1, kib)
	r.wantErr("a bad operation behind a good one", s.Submit(copyOp(b, a, kib), copyOp(b, a, -1)), cudaipc.ErrInvalid)
	r.synchronize(s)
	r.check("the good one in front", b, 1, kib)
}

// testPlainMemory copies host memory that is not registered.
func testPlainMemory(r *rig) {
	mem := r.pages(2 * mib)
	at := cudaipc.HostPtr(mem)
	copy(mem, pattern(1, mib))
	p, s := r.alloc(mib), r.stream()
	r.submit(s, copyOp(p, at, mib), copyOp(at+mib, p, mib))
	r.synchronize(s)
	if err := same(mem[mib:], pattern(1, mib)); err != nil {
		r.Error(err)
	}
}

// testPeers copies between devices that are peers.
func testPeers(r *rig) {
	if len(r.caps.Peers) == 0 {
		r.Skip("the device has no peers")
	}
	there := r.device(r.caps.Peers[0])
	q, err := there.Alloc(mib)
	if err != nil {
		r.Fatal(err)
	}
	r.closeLater("allocation of a peer", func() error { return there.Free(q) })
	p, s := r.alloc(mib), r.stream()
	r.fill(p, 1, mib)
	r.submit(s, copyOp(q, p, mib))
	r.synchronize(s)
	if err := check(r.ctx, there, q, 1, mib); err != nil {
		r.Error(err)
	}
}
