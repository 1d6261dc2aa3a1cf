package lane_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestOddTensors sends tensors of all dtypes and of odd shapes by each mode: the receiver reads the
// packed elements, and impossible shapes are refused.
func TestOddTensors(t *testing.T) {
	dir := newDirectory(t)
	gpu := emul.Options{GranularityBytes: 1 << 16, Apart: true}
	from, to := newBench(t, gpu, lane.Options{Directory: dir}), newBench(t, gpu, lane.Options{Directory: dir})
	src, data := from.tensor(codec.DTypeUint8, 64<<10)
	for _, mode := range []lane.Mode{lane.Default, lane.IPC, lane.Pool} {
		for dtype := codec.DTypeBool; dtype.Valid(); dtype++ {
			for name, c := range map[string]struct {
				shape, strides []int
				refused        bool
			}{
				"0-d":           {shape: []int{}},
				"0-d, strides":  {shape: []int{}, strides: []int{}},
				"no elements":   {shape: []int{3, 0, 2}},
				"all the same":  {shape: []int{5, 7}, strides: []int{0, 0}},
				"overlapping":   {shape: []int{9, 4}, strides: []int{1, 1}},
				"backwards":     {shape: []int{4}, strides: []int{-1}, refused: true},
				"negative":      {shape: []int{-1}, refused: true},
				"beyond memory": {shape: []int{1 << 40, 1 << 40}, strides: []int{0, 0}, refused: true},
				"no end":        {shape: []int{1 << 62, 1 << 62}, refused: true},
				"large strides": {shape: []int{2, 1}, strides: []int{1 << 62, 1}, refused: true},
			} {
				x := &lane.Tensor{DType: dtype, Shape: c.shape, Strides: c.strides, Ptr: src.Ptr}
				h, _, err := from.send(x, mode, 0, nil)
				if c.refused {
					if !errors.Is(err, cudaipc.ErrInvalid) && !errors.Is(err, codec.ErrShape) {
						t.Errorf("%v by %v, %s: %v", dtype, mode, name, err)
					}
					continue
				}
				if err != nil {
					t.Errorf("%v by %v, %s: %v", dtype, mode, name, err)
					continue
				}
				lease, err := from.store.Local().Take(h)
				if err != nil {
					t.Fatal(err)
				}
				m, err := to.lane.Open(t.Context(), lease.Bytes())
				if err != nil {
					t.Fatalf("%v by %v, %s: %v", dtype, mode, name, err)
				}
				m.OnSettled(lease.Release)
				got := to.unwrap(m).(*lane.Tensor)
				if want := packedItems(data, dtype.Size(), c.shape, c.strides); !bytes.Equal(to.read(got), want) || got.DType != dtype {
					t.Errorf("%v by %v, %s: other elements", dtype, mode, name)
				}
				settled(t, m)
			}
		}
	}
}

// TestTensorWithoutMemory: a tensor without an address is an error; an access to it would end the
// GPU.
func TestTensorWithoutMemory(t *testing.T) {
	from := newBench(t, emul.Options{GranularityBytes: 1 << 16}, lane.Options{})
	for _, mode := range []lane.Mode{lane.Default, lane.IPC, lane.Pool} {
		_, _, err := from.send(&lane.Tensor{DType: codec.DTypeUint8, Shape: []int{4}}, mode, 0, nil)
		if want := "send uint8[4]: invalid argument: its Ptr is 0: say where its elements are"; !errors.Is(err, cudaipc.ErrInvalid) || err.Error() != want {
			t.Errorf("by %v: %v, want %s", mode, err, want)
		}
		if _, _, err := from.send(&lane.Tensor{DType: codec.DTypeUint8, Shape: []int{0}}, mode, 0, nil); err != nil {
			t.Errorf("without elements, by %v: %v", mode, err)
		}
	}
	if err := from.dev.Err(); err != nil {
		t.Error(err)
	}
}

// packedItems returns the elements of a strided tensor, in row-major order.
func packedItems(data []byte, itemBytes int, shape, strides []int) (elements []byte) {
	if len(shape) == 0 {
		return data[:itemBytes]
	}
	step := 1
	for _, n := range shape[1:] {
		step *= n
	}
	if strides != nil {
		step = strides[0]
		strides = strides[1:]
	}
	for i := range shape[0] {
		elements = append(elements, packedItems(data[i*step*itemBytes:], itemBytes, shape[1:], strides)...)
	}
	return elements
}
