package ringbuf_test

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/ringbuf"
)

// maxFuzzSteps bounds one input's work: every step compares everything.
const maxFuzzSteps = 300

// FuzzOperations drives a ring and its model from bytes: one for the shape,
// then two for each operation.
func FuzzOperations(f *testing.F) {
	f.Add([]byte{0x00, 0x10, 20, 0x10, 30, 0x40, 0, 0x10, 40, 0x10, 20})
	f.Add([]byte{0x80, 0x10, 20, 0x10, 30, 0x40, 0, 0x40, 0, 0x10, 40, 0x10, 20, 0x10, 10})
	f.Add([]byte{0x36, 0x10, 64, 0x10, 64, 0x10, 1, 0x40, 1, 0x20, 200, 0x70, 1, 0xf0, 0})
	f.Add([]byte{0x0a, 0x10, 20, 0x10, 30, 0x40, 0, 0x10, 40, 0x10, 20})
	f.Fuzz(func(t *testing.T, script []byte) {
		if len(script) == 0 {
			return
		}
		shape, script := script[0], script[1:]
		opts := ringbuf.Options{
			Align:      1 << (shape & 0x0f % 10),
			StrictFIFO: shape&0x80 != 0,
			NoHeaders:  shape&0x0f >= 10,
		}
		x := newMachine(t, max(opts.Align, 100)*int(1+shape>>4&0x07)+int(shape), opts)
		for range maxFuzzSteps {
			if len(script) < 2 {
				return
			}
			op, arg := script[0]>>4, int(script[1])
			wide := int(script[0]&0x0f)<<8 | arg
			script = script[2:]
			switch n := len(x.m.live); {
			case op < 8:
				x.allocate(t, 1+wide%(2*int(x.m.capacity())), uint32(op))
			case op < 12 && n > 0:
				x.release(t, wide%n)
			case op == 15 && arg == 0:
				x.clear()
			default:
				x.reclaim(t, uint64(wide)*0x9e3779b97f4a7c15, arg-1)
			}
			x.compare(t)
		}
	})
}

// FuzzDamage gives a reader a buffer with bytes changed and an address and id
// that may be anything, and the writer the same address: the answer is the
// true payload or an error, within the buffer, and never a panic.
func FuzzDamage(f *testing.F) {
	f.Add(uint16(0), byte(0), uint64(64), uint64(1))
	f.Add(uint16(56), byte(0xff), uint64(64), uint64(1))
	f.Add(uint16(63), byte(0x80), uint64(64), uint64(1))
	f.Add(uint16(0), byte(0), ^uint64(0), ^uint64(0))
	f.Add(uint16(0), byte(0), uint64(1023), uint64(0))
	f.Fuzz(func(t *testing.T, at uint16, flip byte, addr, id uint64) {
		r, buf := newRing(t, 1024, ringbuf.Options{})
		chunks := []ringbuf.Chunk{allocate(t, r, 100), allocate(t, r, 1), allocate(t, r, 300)}
		release(t, r, chunks[1])
		buf[int(at)%len(buf)] ^= flip

		payload, err := ringbuf.View(buf, addr, id)
		switch {
		case err != nil:
			if payload != nil || !errors.Is(err, ringbuf.ErrUnknownAddress) && !errors.Is(err, ringbuf.ErrStale) && !errors.Is(err, ringbuf.ErrHeader) {
				t.Errorf("View: %d bytes and error %v", len(payload), err)
			}
		case addr < ringbuf.HeaderSize || addr+uint64(len(payload)) > uint64(len(buf)):
			t.Errorf("View returned %d bytes at %d of %d", len(payload), addr, len(buf))
		case binary.LittleEndian.Uint64(buf[addr-ringbuf.HeaderSize:]) != id:
			t.Errorf("View of chunk %d returned another", id)
		}

		c, payload, err := r.AccessID(addr, id)
		known := addr == chunks[0].Addr && id == 1 || addr == chunks[2].Addr && id == 3
		if known != (err == nil) {
			t.Errorf("the writer's access to chunk %d at %d: %v", id, addr, err)
		}
		if err == nil && (c != chunks[id-1] || uint64(len(payload)) != c.Size) {
			t.Errorf("damage changed what the writer knows: %v with %d bytes", c, len(payload))
		}
		for _, v := range r.Check() {
			if v.Invariant != ringbuf.InvariantHeader {
				t.Errorf("damage to the buffer broke more than a header: %v", v)
			}
		}
	})
}
