package lane

import (
	"errors"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// run runs copies on a slice.
func run(t interface{ Fatalf(string, ...any) }, mem []byte, ops []cudaipc.Op) {
	for _, op := range ops {
		rows := max(op.Rows, 1)
		if op.Kind == cudaipc.OpCopy2D && (op.SrcPitch < op.Bytes || op.DstPitch < op.Bytes) {
			t.Fatalf("a row of %d bytes with pitches %d and %d", op.Bytes, op.SrcPitch, op.DstPitch)
		}
		for i := range rows {
			to, from := int64(op.Dst)+i*op.DstPitch, int64(op.Src)+i*op.SrcPitch
			copy(mem[to:to+op.Bytes], mem[from:from+op.Bytes])
		}
	}
}

// TestPackIsRowMajor compares the result of pack with an element by element copy.
func TestPackIsRowMajor(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		item := rapid.SampledFrom([]int{1, 2, 4, 8}).Draw(t, "item")
		shape := rapid.SliceOfN(rapid.IntRange(0, 5), 0, 5).Draw(t, "shape")
		strides := make([]int, len(shape))
		if rapid.Bool().Draw(t, "permuted") { // a permutation of a contiguous tensor
			order := rapid.Permutation(indexes(len(shape))).Draw(t, "order")
			step := 1
			for _, i := range order {
				strides[i] = step
				step *= max(shape[i], 1)
			}
		} else {
			for i := range strides {
				strides[i] = rapid.IntRange(0, 12).Draw(t, "stride")
			}
		}
		reach, ok := extent(int64(item), shape, strides)
		if !ok {
			t.Fatalf("extent of %v, %v", shape, strides)
		}
		count := 1
		for _, n := range shape {
			count *= n
		}
		const src = 64
		dst := src + int(reach) + 64
		mem := make([]byte, dst+count*item)
		for i := range mem[:dst] {
			mem[i] = byte(i*7 + i>>8)
		}
		var want []byte
		each(shape, func(at []int) {
			from := src
			for i, x := range at {
				from += x * strides[i] * item
			}
			want = append(want, mem[from:from+item]...)
		})
		ops, err := pack(nil, cudaipc.Ptr(dst), src, int64(item), shape, strides)
		if err != nil {
			t.Fatalf("pack %v, %v: %v", shape, strides, err)
		}
		run(t, mem, ops)
		if got := mem[dst:]; !slices.Equal(got, want) {
			t.Fatalf("shape %v, strides %v, item %d: got %v, want %v", shape, strides, item, got, want)
		}
	})
}

func indexes(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}

// each calls f with every index of a shape, in row-major order.
func each(shape []int, f func(at []int)) {
	at := make([]int, len(shape))
	var rec func(i int)
	rec = func(i int) {
		if i == len(shape) {
			f(at)
			return
		}
		for at[i] = range shape[i] {
			rec(i + 1)
		}
	}
	rec(0)
}

func TestPackTakesFewCopies(t *testing.T) {
	for _, c := range []struct {
		name           string
		shape, strides []int
		want           int
	}{
		{"contiguous", []int{4, 5, 6}, []int{30, 6, 1}, 1},
		{"a scalar", nil, nil, 1},
		{"nothing", []int{3, 0}, []int{1, 1}, 0},
		{"columns of a matrix", []int{100, 8}, []int{64, 1}, 1},
		{"transposed", []int{64, 64}, []int{1, 64}, 64},
		{"broadcast", []int{9, 7}, []int{0, 1}, 9},
	} {
		t.Run(c.name, func(t *testing.T) {
			ops, err := pack(nil, 0, 0, 4, c.shape, c.strides)
			if err != nil || len(ops) != c.want {
				t.Errorf("%d copies, %v, want %d", len(ops), err, c.want)
			}
		})
	}
}

func TestPackRefuses(t *testing.T) {
	for _, c := range []struct {
		name           string
		shape, strides []int
	}{
		{"a negative stride", []int{2}, []int{-1}},
		{"too few strides", []int{2, 2}, []int{1}},
		{"too many copies", []int{300, 300, 2}, []int{0, 0, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := pack(nil, 0, 0, 4, c.shape, c.strides); !errors.Is(err, cudaipc.ErrInvalid) {
				t.Errorf("%v, want ErrInvalid", err)
			}
		})
	}
}

func TestExtent(t *testing.T) {
	for _, c := range []struct {
		name           string
		shape, strides []int
		want           int64
		ok             bool
	}{
		{"contiguous", []int{2, 3}, nil, 24, true},
		{"strided", []int{2, 3}, []int{10, 2}, 60, true},
		{"scalar", nil, []int{}, 4, true},
		{"empty", []int{0, 1 << 62}, []int{1, 1}, 0, true},
		{"too much", []int{1 << 40, 1 << 40}, nil, 0, false},
		{"reaches too far", []int{1 << 40}, []int{1 << 40}, 0, false},
		{"negative", []int{-1}, nil, 0, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got, ok := extent(4, c.shape, c.strides); ok != c.ok || ok && got != c.want {
				t.Errorf("extent = %d, %t, want %d, %t", got, ok, c.want, c.ok)
			}
		})
	}
}
