package emul

import (
	"context"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// rawStreams is what the handles of streams count from, beyond those that stand for
// a default stream.
const rawStreams uintptr = 1 << 8

// wrapped is a stream that is somebody else's.
type wrapped struct {
	*stream
	closed atomic.Bool // go of
}

// WrapStream implements [cudaipc.Device].
func (v *device) WrapStream(raw uintptr) (cudaipc.Stream, error) {
	const call = "WrapStream"
	if err := v.check(call); err != nil {
		return nil, err
	}
	switch raw {
	case 0:
		return nil, v.invalid(call, "stream 0 is one default stream or another: pass %d for the legacy one", cudaipc.LegacyStream)
	case cudaipc.LegacyStream:
		s, err := v.primary.legacyStream(call)
		if err != nil {
			return nil, err
		}
		return &wrapped{stream: s}, nil
	}
	p := v.primary
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.streams {
		if s.Raw() == raw {
			return &wrapped{stream: s}, nil
		}
	}
	return nil, invalidHandle.with(call, v.caps.Device, cudaipc.ErrInvalid, "%#x is no stream of this device", raw)
}

// legacyStream is the default stream, which is there as long as the device is.
func (p *primary) legacyStream(call string) (*stream, error) {
	p.legacyMu.Lock()
	defer p.legacyMu.Unlock()
	if p.legacy != nil {
		return p.legacy, nil
	}
	s, err := p.newStream(call)
	if err == nil {
		p.mu.Lock()
		p.legacy = s
		p.mu.Unlock()
	}
	return s, err
}

func (w *wrapped) closedErr(call string) error {
	if !w.closed.Load() {
		return nil
	}
	return invalidHandle.with(call, w.primary.gpu.uuid, cudaipc.ErrClosed, "the stream is")
}

// Submit implements [cudaipc.Stream].
func (w *wrapped) Submit(ops ...cudaipc.Op) error {
	if err := w.closedErr("Submit"); err != nil {
		return err
	}
	return w.stream.Submit(ops...)
}

// Synchronize implements [cudaipc.Stream].
func (w *wrapped) Synchronize(ctx context.Context) error {
	if err := w.closedErr("Synchronize"); err != nil {
		return err
	}
	return w.stream.Synchronize(ctx)
}

// Close implements [cudaipc.Stream]. The stream is still its owner's.
func (w *wrapped) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	return w.primary.failure("Stream.Close")
}
