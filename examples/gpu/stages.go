package main

import (
	"errors"
	"fmt"
	"hash/crc64"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// fill sends as many tensors as its input says, each with the checksum of its turned
// rows.
func (s *stage) fill(t *bus.Task, d *bus.Delivery) error {
	var tensors int
	if err := d.Decode(&tensors); err != nil {
		return err
	}
	for i := range tensors {
		for at := range s.buffer {
			s.buffer[at] = byte(at*7 + at>>8 + i)
		}
		made, err := s.tensor()
		if err != nil {
			return err
		}
		release := func() { s.free(made) }
		err = s.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: made.Ptr, Src: s.host.Ptr(0), Bytes: s.bytes()})
		if err == nil {
			err = s.stream.Synchronize(t.Context()) // the buffer is filled again
		}
		if err != nil {
			release()
			return err
		}
		v := map[string]any{"tensor": made, "checksum": turnedChecksum(s.buffer)}
		if err := t.EmitTensors(v, bus.TensorOptions{Release: release}); err != nil {
			return err
		}
	}
	return nil
}

// turn swaps the halves of each row. It never waits for the GPU: its copies are
// queued after those that bring the tensor, and before those that send the result.
func (s *stage) turn(t *bus.Task, d *bus.Delivery) error {
	_, v, from, err := s.receive(t, d)
	if err != nil {
		return err
	}
	turned, err := s.tensor()
	if err != nil {
		return err
	}
	half := cudaipc.Op{Kind: cudaipc.OpCopy2D, Bytes: rowBytes / 2, Rows: int64(s.rows), DstPitch: rowBytes, SrcPitch: rowBytes}
	left, right := half, half
	left.Dst, left.Src = turned.Ptr, from+rowBytes/2
	right.Dst, right.Src = turned.Ptr+rowBytes/2, from
	if err := s.stream.Submit(left, right); err != nil {
		s.free(turned)
		return err
	}
	v["tensor"] = turned
	return t.EmitTensors(v, bus.TensorOptions{Stream: s.stream, Release: func() { s.free(turned) }})
}

// sum compares the checksum of each tensor that arrives.
func (s *stage) sum(t *bus.Task, d *bus.Delivery) error {
	m, v, from, err := s.receive(t, d)
	if err != nil {
		return err
	}
	if err := s.stream.Submit(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: s.host.Ptr(0), Src: from, Bytes: s.bytes()}); err != nil {
		return err
	}
	if err := errors.Join(s.stream.Synchronize(t.Context()), m.Err()); err != nil {
		return err
	}
	if got := text(crc64.Checksum(s.buffer, polynomial)); got != v["checksum"] {
		return fmt.Errorf("tensor %d has the checksum %v, and not %v", d.Seq, got, v["checksum"])
	}
	return t.EmitBytes([]byte(way(m)))
}

// receive has the stage's stream wait for a delivery's tensor, and returns its parts.
func (s *stage) receive(t *bus.Task, d *bus.Delivery) (m *lane.Message, v map[string]any, from cudaipc.Ptr, err error) {
	if m, err = d.Tensors(t.Context()); err == nil {
		v, from, err = s.parts(m)
	}
	if err == nil {
		err = m.Await(s.stream)
	}
	return m, v, from, err
}

// parts returns a message's value and the address of its tensor: on the GPU or, with
// the transport default, in the payload.
func (s *stage) parts(m *lane.Message) (v map[string]any, from cudaipc.Ptr, err error) {
	v, _ = m.Value().(map[string]any)
	switch x := v["tensor"].(type) {
	case *lane.Tensor:
		if x.Bytes() == s.bytes() {
			return v, x.Ptr, nil
		}
	case codec.Tensor:
		if int64(len(x.Data)) == s.bytes() {
			return v, cudaipc.HostPtr(x.Data), nil
		}
	}
	return nil, 0, fmt.Errorf("a value without a tensor of %d rows", s.rows)
}

func way(m *lane.Message) string {
	if m.OnDevice() {
		return "in GPU memory"
	}
	return "through host memory"
}

var polynomial = crc64.MakeTable(crc64.ECMA)

// turnedChecksum is the checksum of rows whose halves are swapped.
func turnedChecksum(rows []byte) string {
	var sum uint64
	for ; len(rows) > 0; rows = rows[rowBytes:] {
		sum = crc64.Update(sum, polynomial, rows[rowBytes/2:rowBytes])
		sum = crc64.Update(sum, polynomial, rows[:rowBytes/2])
	}
	return text(sum)
}

func text(sum uint64) string { return fmt.Sprintf("%016x", sum) }
