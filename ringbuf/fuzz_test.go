package ringbuf_test

import (
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
			Align: 1 << (shape & 0x0f % 10),
			Reuse: shape&0x80 != 0,
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
			case n > 0:
				x.release(t, wide%n)
			}
			x.compare(t)
		}
	})
}
