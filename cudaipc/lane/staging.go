package lane

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Memory that a GPU does not reach is copied, piece by piece, into a registered staging buffer, and
// from there by the stream, while the CPU fills the other piece; or in the other direction. Pieces
// are so small that they stay in the CPU's cache.
const (
	stagingPieceBytes = 1 << 20
	stagingPieces     = 2
	// maxStagings bounds the buffers of a device. A stream uses its buffer until it has passed the
	// copies, and streams wait for other processes: so no call waits for a buffer, and for more
	// concurrent copies the driver does the staging.
	maxStagings = 4
)

// staging is a buffer, for one stream at a time.
type staging struct {
	dev    *device
	mem    []byte
	host   cudaipc.HostMemory
	pieces [stagingPieces]stagingPiece
	next   int
	broken bool // its words may never be written
}

// stagingPiece belongs to the CPU when its word has reached seq: the stream has copied it then, or
// filled it.
type stagingPiece struct {
	mem  []byte
	ptr  cudaipc.Ptr
	word cudaipc.Word
	seq  uint32
}

func newStaging(d *device) (*staging, error) {
	const wordsAt = stagingPieces * stagingPieceBytes
	mem, err := newMemory(wordsAt + os.Getpagesize())
	if err != nil {
		return nil, fmt.Errorf("a staging buffer: %w", err)
	}
	host, err := d.RegisterHost(mem, false)
	if err != nil {
		_ = freeMemory(mem)
		return nil, fmt.Errorf("a staging buffer: %w", err)
	}
	st := &staging{dev: d, mem: mem, host: host}
	for i := range st.pieces {
		at := i * stagingPieceBytes
		st.pieces[i] = stagingPiece{mem: mem[at : at+stagingPieceBytes], ptr: host.Ptr(int64(at)), word: host.Word(int64(wordsAt + i*lineBytes))}
	}
	return st, nil
}

// copy copies data to dst on a stream. It returns when it has read all data; the stream may still
// have the last pieces to copy.
func (st *staging) copy(s cudaipc.Stream, dst cudaipc.Ptr, data []byte) error {
	for len(data) > 0 {
		p := &st.pieces[st.next]
		st.next = (st.next + 1) % stagingPieces
		if err := st.dev.await(context.Background(), p.word, p.seq); err != nil {
			return err
		}
		n := copy(p.mem, data)
		p.seq++
		err := s.Submit(
			cudaipc.Op{Kind: cudaipc.OpCopy, Dst: dst, Src: p.ptr, Bytes: int64(n)},
			cudaipc.Op{Kind: cudaipc.OpWrite, Word: p.word, Value: p.seq},
		)
		if err != nil {
			st.broken = true
			return err
		}
		data, dst = data[n:], dst+cudaipc.Ptr(n)
	}
	return nil
}

// isIdle reports whether its last stream has passed the copies.
func (st *staging) isIdle() bool {
	for i := range st.pieces {
		if p := &st.pieces[i]; !p.word.Reached(p.seq) {
			return false
		}
	}
	return true
}

func (st *staging) close() error {
	if err := st.host.Close(); err != nil {
		return err // the device may still use it, so the memory stays mapped
	}
	return freeMemory(st.mem)
}

// await waits until a stream has written a word, the device has failed, or ctx ends.
func (d *device) await(ctx context.Context, word cudaipc.Word, v uint32) error {
	if word.Reached(v) {
		return nil
	}
	over := make(chan struct{})
	d.watcher.add(d, reached(word, v), func() { close(over) })
	select {
	case <-over:
	case <-ctx.Done():
		return ctx.Err()
	}
	if !word.Reached(v) {
		return d.Err()
	}
	return nil
}

// takeStaging takes a buffer, or returns nil: then the driver does the staging.
func (l *Lane) takeStaging(d *device) *staging {
	st, err := d.takeStaging()
	if err != nil {
		l.opts.Logger.Info("the driver stages payloads on their way from and to the GPU", slog.Any("why", err))
	}
	return st
}

// takeStaging takes a buffer that no stream uses; nil: none is free. An error is the reason why no
// further buffer can be made.
func (d *device) takeStaging() (*staging, error) {
	d.mu.Lock()
	for i, st := range d.stagings {
		if st.isIdle() {
			d.stagings = append(d.stagings[:i], d.stagings[i+1:]...)
			d.mu.Unlock()
			return st, nil
		}
	}
	full := d.stagingsMade >= maxStagings || !d.Caps().Words
	if !full {
		d.stagingsMade++
	}
	d.mu.Unlock()
	if full {
		return nil, nil //nolint:nilnil // the caller then uses the driver
	}
	st, err := newStaging(d)
	if err != nil {
		d.mu.Lock()
		d.stagingsMade = maxStagings
		d.mu.Unlock()
		return nil, err
	}
	d.onClose(st.close)
	return st, nil
}

func (d *device) giveStaging(st *staging) {
	if st.broken {
		return // it is closed with the device
	}
	d.mu.Lock()
	d.stagings = append(d.stagings, st)
	d.mu.Unlock()
}
