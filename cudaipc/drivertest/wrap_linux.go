package drivertest

import (
	"github.com/omnibus-runtime/omnibus/cudaipc"
)

func (r *rig) wrap(raw uintptr) cudaipc.Stream {
	r.Helper()
	s, err := r.dev.WrapStream(raw)
	if err != nil {
		r.Fatalf("WrapStream(%#x): %v", raw, err)
	}
	r.closeLater("wrapped stream", s.Close)
	return s
}

// testWrappedStream: operations that are submitted to a stream and to its wrapper run in one order.
func testWrappedStream(r *rig) {
	const n = mib
	words := r.words(2)
	gate, out := words[0], words[1]
	mem, h := r.host(n)
	a, b, c := r.alloc(n), r.alloc(n), r.alloc(n)
	own, other, e := r.stream(), r.stream(), r.event()
	if own.Raw() == other.Raw() || own.Raw() == 0 || own.Raw() == cudaipc.LegacyStream {
		r.Fatalf("two streams are %#x and %#x", own.Raw(), other.Raw())
	}
	w := r.wrap(own.Raw())
	if w.Raw() != own.Raw() {
		r.Errorf("%#x is wrapped as %#x", own.Raw(), w.Raw())
	}
	r.fill(a, 1, n)
	r.submit(own, waitOp(gate, 1), copyOp(b, a, n))
	r.submit(w, copyOp(c, b, n), recordOp(e))
	r.submit(own, writeOp(out, 1))
	r.submit(other, awaitOp(e), copyOp(h.Ptr(0), c, n))
	for _, s := range []cudaipc.Stream{own, w, other} {
		r.wantBlocked(s)
	}
	if out.Host.Load() != 0 {
		r.Error("an operation has overtaken those of the wrapper")
	}
	gate.Host.Store(1)
	r.synchronize(other)
	if err := same(mem, pattern(1, n)); err != nil {
		r.Errorf("behind both: %v", err)
	}
	r.synchronize(w)
	if out.Host.Load() != 1 {
		r.Error("Synchronize of the wrapper does not wait for operations of the stream")
	}
}

// testCloseWrapped: the stream works after the Close of its wrapper, and operations of the wrapper
// are done.
func testCloseWrapped(r *rig) {
	words := r.words(2)
	gate, out := words[0], words[1]
	own := r.stream()
	w := r.wrap(own.Raw())
	r.submit(w, waitOp(gate, 1), writeOp(out, 1))
	if err := w.Close(); err != nil {
		r.Errorf("close a wrapped stream that waits: %v", err)
	}
	r.wantErr("Submit to a wrapped stream that is closed", w.Submit(writeOp(out, 3)), cudaipc.ErrClosed)
	r.wantErr("Synchronize of a wrapped stream that is closed", w.Synchronize(r.ctx), cudaipc.ErrClosed)
	r.submit(own, writeOp(out, 2))
	r.wantBlocked(own)
	gate.Host.Store(1)
	r.synchronize(own)
	if got := out.Host.Load(); got != 2 {
		r.Errorf("the word is %d, and the stream's owner wrote 2 in the end", got)
	}
	again := r.wrap(own.Raw())
	r.submit(again, writeOp(out, 4))
	r.synchronize(again)
}

// testDefaultStreams: all wrappers of the legacy default stream are one stream. The other default
// streams depend on the caller, and are refused.
func testDefaultStreams(r *rig) {
	words := r.words(2)
	gate, out := words[0], words[1]
	for _, raw := range []uintptr{0, 2} {
		_, err := r.dev.WrapStream(raw)
		r.wantErr("wrap a default stream that may be another's", err, cudaipc.ErrInvalid)
	}
	a, b := r.wrap(cudaipc.LegacyStream), r.wrap(cudaipc.LegacyStream)
	r.submit(a, waitOp(gate, 1))
	r.submit(b, writeOp(out, 1))
	r.wantBlocked(b)
	gate.Host.Store(1)
	r.synchronize(b)
	if out.Host.Load() != 1 {
		r.Error("an operation on the default stream was not done")
	}
}

func testForeignStream(r *rig) {
	if len(r.all) < 2 {
		r.Skip("there is one device")
	}
	other, err := r.device(r.all[1].Device).NewStream()
	if err != nil {
		r.Fatal(err)
	}
	r.closeLater("stream of the other device", other.Close)
	_, err = r.dev.WrapStream(other.Raw())
	r.wantErr("wrap a stream of another device", err, cudaipc.ErrInvalid)
}
