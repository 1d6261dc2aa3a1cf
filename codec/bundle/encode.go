package bundle

import (
	"encoding/binary"
	"fmt"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

// EncodeInto writes the bundle into dst, which has the size that Size returns,
// and copies the data of tensors that are not a [Source]. Afterwards Data of each tensor in
// the payload is that tensor's part of dst: for a Source the caller fills all of it.
func (p *Plan) EncodeInto(dst []byte) error {
	size, err := p.Size()
	if err != nil {
		return err
	}
	if len(dst) != size {
		return &codec.SizeError{Serializer: name, Got: len(dst), Want: size}
	}
	if err := p.check(); err != nil {
		return err
	}
	at := p.putHeader(dst)
	for i := range p.Places {
		p.Places[i].put(dst[at:])
		at += placeBytes
	}
	for i := range p.Tensors {
		at += p.Tensors[i].put(dst[at:])
	}
	at += copy(dst[at:], p.tree)
	for i := range p.Tensors {
		t := &p.Tensors[i]
		if t.Place != 0 || t.Bytes == 0 {
			continue
		}
		clear(dst[at:t.Offset]) // reserved memory holds old bytes
		at = int(t.Offset + t.Bytes)
		data := dst[t.Offset:at:at]
		pack.Copy(data, t.Data)
		t.Data = data
	}
	clear(dst[at:])
	return nil
}

// check refuses the places and tensors that Open would refuse.
func (p *Plan) check() error {
	for i := range p.Places {
		if reason := p.Places[i].validate(); reason != "" {
			return fmt.Errorf("codec: %s: encode: %w: place %d: %s", name, codec.ErrShape, i+1, reason)
		}
	}
	for i := range p.Tensors {
		t := &p.Tensors[i]
		if t.Place == 0 {
			continue
		}
		reason := fmt.Sprintf("offset %d", t.Offset)
		if t.Offset >= 0 {
			reason = t.Tensor.check(p.Places)
		}
		if reason != "" {
			return fmt.Errorf("codec: %s: encode: tensor %d: %w", name, i, t.shapeError(reason))
		}
	}
	return nil
}

func (p *Plan) putHeader(dst []byte) int {
	binary.LittleEndian.PutUint64(dst, uint64(magic)|uint64(version)<<32)
	binary.LittleEndian.PutUint32(dst[8:], uint32(len(p.Places)))
	binary.LittleEndian.PutUint32(dst[12:], uint32(len(p.Tensors)))
	binary.LittleEndian.PutUint64(dst[16:], uint64(p.tableBytes()))
	binary.LittleEndian.PutUint64(dst[24:], uint64(len(p.tree)))
	return headerBytes
}

func (p *Place) put(dst []byte) {
	binary.LittleEndian.PutUint32(dst, uint32(p.Kind))
	binary.LittleEndian.PutUint32(dst[4:], p.Arena)
	binary.LittleEndian.PutUint32(dst[8:], p.Slot)
	binary.LittleEndian.PutUint32(dst[12:], p.Generation)
	copy(dst[16:], p.Device[:])
	copy(dst[32:], p.Pool[:])
	binary.LittleEndian.PutUint64(dst[48:], uint64(p.Offset))
	binary.LittleEndian.PutUint64(dst[56:], uint64(p.Bytes))
	copy(dst[64:], p.Handle[:])
}

// put writes the tensor's record and returns its size.
func (t *Tensor) put(dst []byte) int {
	dst[0], dst[1], dst[2], dst[3] = byte(t.DType), byte(len(t.Shape)), 0, 0
	if t.Strides != nil {
		dst[2] = 1
	}
	binary.LittleEndian.PutUint32(dst[4:], uint32(t.Place))
	binary.LittleEndian.PutUint64(dst[8:], uint64(t.Offset))
	binary.LittleEndian.PutUint64(dst[16:], uint64(t.Bytes))
	at := tensorBytes
	for _, numbers := range [...][]int{t.Shape, t.Strides} {
		for _, n := range numbers {
			binary.LittleEndian.PutUint64(dst[at:], uint64(n))
			at += dimBytes
		}
	}
	return at
}
