package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	gpulane "github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/messages"
)

// The action of a consumer on a tensor: the entry "do" of a value.
const (
	doView    = "view"    // wait until it is there
	doQueue   = "queue"   // have the stream wait until it is there
	doOut     = "out"     // copy it out
	doStart   = "start"   // report when the GPU begins after it
	doCheck   = "check"   // copy it to the host, and compare
	doHasty   = "hasty"   // the same without a wait: a mistake on purpose
	doHold    = "hold"    // copy it to the host much later, and compare when asked
	doDropped = "dropped" // the same, but acknowledge it before: a mistake on purpose
	doVerdict = "verdict" // compare the tensor that was copied late
	doCount   = "count"   // count the resources of this process
)

// gpuConsumer is the peer of a gpuPair.
type gpuConsumer struct {
	*gpuEnd
	out    cudaipc.Ptr // a tensor of its own
	hold   holder
	buffer []byte // the memory of host
	host   cudaipc.HostMemory
	word   cudaipc.Word
	seq    uint32
}

// gpuPage is the unit of memory that is registered with a GPU.
const gpuPage = 4096

func newGPUConsumer(g *gpuEnd) (*gpuConsumer, error) {
	c := &gpuConsumer{gpuEnd: g}
	release := g.lane.Mapped(g.reader.Arena())
	g.onClose(func(context.Context) error {
		forgotten := make(chan struct{})
		release(func() { close(forgotten) })
		<-forgotten
		return nil
	})
	var err error
	if c.out, err = g.alloc(g.spec.TensorBytes); err != nil {
		return nil, err
	}
	_, words, err := g.pinned(gpuPage)
	if err != nil {
		return nil, err
	}
	c.word = words.Word(0)
	if g.spec.HoldBytes == 0 {
		return c, nil
	}
	if c.buffer, c.host, err = g.pinned((g.spec.TensorBytes + gpuPage - 1) &^ (gpuPage - 1)); err != nil {
		return nil, err
	}
	c.buffer = c.buffer[:g.spec.TensorBytes]
	c.hold, err = newHolder(context.Background(), g)
	return c, err
}

// serve does the action of each value that arrives.
func (c *gpuConsumer) serve(ctx context.Context) error {
	for {
		m, err := c.receiveMessage(ctx)
		if err != nil {
			return err
		}
		v, _ := m.Value().(map[string]any)
		if err := c.do(ctx, m, v); err != nil {
			return fmt.Errorf("%v: %w", v["do"], err)
		}
	}
}

// receiveMessage waits for a value.
func (c *gpuConsumer) receiveMessage(ctx context.Context) (*gpulane.Message, error) {
	frame, kind, err := c.next()
	if err != nil {
		return nil, err
	}
	var h messages.Handle
	if err := h.UnmarshalBinary(frame); err != nil || kind != frameHandle {
		return nil, fmt.Errorf("a frame of kind %d without a handle: %w", kind, err)
	}
	c.receiver.Advance()
	l, err := c.reader.Take(h)
	if err != nil {
		return nil, err
	}
	m, err := c.lane.Open(ctx, l.Bytes())
	if err != nil {
		l.Release()
		return nil, err
	}
	m.OnSettled(l.Release)
	return m, nil
}

func (c *gpuConsumer) do(ctx context.Context, m *gpulane.Message, v map[string]any) error {
	mark, _ := v["mark"].(int64)
	switch v["do"] {
	case doView:
		return c.release(ctx, m, m.Await(c.stream), v["last"])
	case doQueue:
		if err := errors.Join(m.Await(c.stream), m.Close()); err != nil || v["last"] != true {
			return err
		}
		return c.answer(answer{})
	case doOut:
		_, err := m.Unwrap(c.stream, cudaipc.UUID{}, func(int64) (cudaipc.Ptr, error) { return c.out, nil })
		return c.release(ctx, m, err, v["last"])
	case doStart:
		return c.start(m)
	case doCheck, doHasty:
		return c.check(ctx, m, v["do"] == doCheck, byte(mark))
	case doHold, doDropped:
		return c.readLate(ctx, m, v["do"] == doHold)
	case doVerdict:
		if err := errors.Join(m.Close(), c.stream.Synchronize(ctx)); err != nil {
			return err
		}
		return c.answer(answer{wrong: !c.all(byte(mark))})
	case doCount:
		if err := m.Close(); err != nil {
			return err
		}
		u, err := c.count(ctx)
		return errors.Join(err, c.sendUsage(u))
	}
	return errors.New("unknown action")
}

// release closes a message. After the last one it waits until all tensors are complete, and answers.
func (c *gpuConsumer) release(ctx context.Context, m *gpulane.Message, err error, last any) error {
	if err = errors.Join(err, m.Close()); err != nil || last != true {
		return err
	}
	if err := errors.Join(c.stream.Synchronize(ctx), m.Err()); err != nil {
		return err
	}
	return c.answer(answer{})
}

func (c *gpuConsumer) start(m *gpulane.Message) error {
	if err := m.Await(c.stream); err != nil {
		return err
	}
	c.seq++
	if err := c.stream.Submit(cudaipc.Op{Kind: cudaipc.OpWrite, Word: c.word, Value: c.seq}); err != nil {
		return err
	}
	const polls = 1 << 10 // between yields
	for !c.word.Reached(c.seq) {
		if err := m.Err(); err != nil {
			return err
		}
		for range polls {
			if c.word.Reached(c.seq) {
				break
			}
		}
		runtime.Gosched()
	}
	a := answer{started: monotonic()}
	return errors.Join(m.Close(), c.answer(a))
}

// copyOut has the stream copy a tensor to the host.
func (c *gpuConsumer) copyOut(m *gpulane.Message) error {
	v, _ := m.Value().(map[string]any)
	t, ok := v["x"].(*gpulane.Tensor)
	if !ok || t.DType != codec.DTypeUint8 || t.Bytes() != c.spec.TensorBytes {
		return fmt.Errorf("%T is no tensor of %d bytes", v["x"], c.spec.TensorBytes)
	}
	return c.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: c.host.Ptr(0), Src: t.Ptr, Bytes: c.spec.TensorBytes})
}

func (c *gpuConsumer) check(ctx context.Context, m *gpulane.Message, waits bool, mark byte) error {
	if waits {
		if err := m.Await(c.stream); err != nil {
			return err
		}
	}
	if err := c.copyOut(m); err != nil {
		return err
	}
	if err := c.stream.Synchronize(ctx); err != nil {
		return err
	}
	wrong := !c.all(mark)
	return errors.Join(m.Close(), c.answer(answer{wrong: wrong}))
}

// readLate has the stream copy a tensor long after the message is closed. Without waits, the
// message is acknowledged before the stream has read the tensor.
func (c *gpuConsumer) readLate(ctx context.Context, m *gpulane.Message, waits bool) error {
	err := m.Wait(ctx)
	if waits {
		err = errors.Join(err, m.Await(c.stream))
	}
	if err = errors.Join(err, c.hold.occupy(c.stream), c.copyOut(m), m.Close()); err != nil {
		return err
	}
	return c.answer(answer{})
}

func (c *gpuConsumer) all(mark byte) bool {
	return bytes.Count(c.buffer, []byte{mark}) == len(c.buffer)
}
