package emul

import (
	"context"
	"sync/atomic"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// rawStreams is the base of the handles of streams, above those of the default streams.
const rawStreams uintptr = 1 << 8

// wrapped is a wrapper of a stream with another owner.
type wrapped struct {
	*stream
	closed atomic.Bool // the wrapper was closed
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

// legacyStream returns the default stream, which exists as long as the device.
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

// Close implements [cudaipc.Stream]. It does not close the stream.
func (w *wrapped) Close() error {
	if w.closed.Swap(true) {
		return nil
	}
	return w.primary.failure("Stream.Close")
}
