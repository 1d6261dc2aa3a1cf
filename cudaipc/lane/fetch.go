package lane

import (
	"context"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// fetch describes the copies of one tensor from a GPU to host memory, packed: each copy begins
// where the one before ends.
type fetch struct {
	data []byte
	ops  []cudaipc.Op
}

// fetch copies tensors into a payload on a stream, and returns when they are complete. The GPU
// copies directly if the memory is registered; if it refused the memory, the copies go through a
// staging buffer. Memory that is in no map, such as a payload on the heap, is left to the driver.
func (l *Lane) fetch(ctx context.Context, d *device, s cudaipc.Stream, payload []byte, fetches []fetch) error {
	h, _ := l.maps.find(payload)
	refused := h != nil && !h.copiesDirectly(d)
	var st *staging
	if refused {
		st = l.takeStaging(d)
	}
	if st != nil {
		defer d.giveStaging(st)
		err := st.fetch(ctx, s, fetches)
		if err == nil {
			l.count(func(s *Stats) { s.StagedBytes += sizeOf(fetches) })
		}
		return err
	}
	for _, f := range fetches {
		if err := s.Submit(f.ops...); err != nil {
			return err
		}
	}
	if refused {
		l.count(func(s *Stats) { s.PageableBytes += sizeOf(fetches) })
	}
	return s.Synchronize(ctx)
}

func sizeOf(fetches []fetch) (sizeBytes int64) {
	for _, f := range fetches {
		sizeBytes += int64(len(f.data))
	}
	return sizeBytes
}

// fetch has a stream fill pieces, and copies full ones into the data. After an error the stream may
// still have pieces to fill.
func (st *staging) fetch(ctx context.Context, s cudaipc.Stream, fetches []fetch) error {
	var full [stagingPieces][]byte // the destination of each piece
	empty := func(i int) error {
		p := &st.pieces[i]
		if err := st.dev.await(ctx, p.word, p.seq); err != nil {
			return err
		}
		copy(full[i], p.mem)
		full[i] = nil
		return nil
	}
	for _, f := range fetches {
		left := cutter{ops: f.ops}
		for rest := f.data; len(rest) > 0; {
			i := st.next
			st.next = (i + 1) % stagingPieces
			if err := empty(i); err != nil {
				return err
			}
			p := &st.pieces[i]
			n := min(len(rest), stagingPieceBytes)
			ops := left.next(p.ptr, int64(n))
			p.seq++
			if err := s.Submit(append(ops, cudaipc.Op{Kind: cudaipc.OpWrite, Word: p.word, Value: p.seq})...); err != nil {
				st.broken = true
				return err
			}
			full[i], rest = rest[:n], rest[n:]
		}
	}
	for range stagingPieces { // the older piece first
		if err := empty(st.next); err != nil {
			return err
		}
		st.next = (st.next + 1) % stagingPieces
	}
	return nil
}

// cutter divides the copies of a packed tensor into pieces.
type cutter struct {
	ops  []cudaipc.Op
	done int64 // bytes of the first copy that are done
}

// next returns the copies of the next n bytes, to dst. There are at least n.
func (c *cutter) next(dst cudaipc.Ptr, n int64) (ops []cudaipc.Op) {
	for n > 0 {
		op, whole := c.cut(n)
		op.Dst = dst
		ops = append(ops, op)
		taken := op.Bytes * max(op.Rows, 1)
		dst += cudaipc.Ptr(taken)
		n -= taken
		if c.done += taken; c.done == whole {
			c.ops, c.done = c.ops[1:], 0
		}
	}
	return ops
}

// cut returns a copy of at most n bytes from the front, and the size of the whole first copy: whole
// rows as far as possible, otherwise a part of a row.
func (c *cutter) cut(n int64) (op cudaipc.Op, whole int64) {
	op = c.ops[0]
	if op.Kind == cudaipc.OpCopy {
		whole = op.Bytes
		op.Src += cudaipc.Ptr(c.done)
		op.Bytes = min(n, whole-c.done)
		return op, whole
	}
	whole = op.Bytes * op.Rows
	row, column := c.done/op.Bytes, c.done%op.Bytes
	op.Src += cudaipc.Ptr(row*op.SrcPitch + column)
	if column > 0 || n < op.Bytes {
		return cudaipc.Op{Kind: cudaipc.OpCopy, Src: op.Src, Bytes: min(n, op.Bytes-column)}, whole
	}
	op.Rows = min(op.Rows-row, n/op.Bytes)
	return op, whole
}
