package pack_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec/internal/pack"
)

// write draws a value and writes it with the library and with two Writers.
func write(t *rapid.T, lib *msgpack.Encoder, writers []*pack.Writer, depth int) (err error) {
	each := func(f func(w *pack.Writer)) {
		for _, w := range writers {
			f(w)
		}
	}
	lengths := rapid.SampledFrom([]int{0, 1, 2, 4, 8, 15, 16, 17, 31, 32, 255, 256, 65535, 65536})
	kinds := 8
	if depth > 0 {
		kinds = 10
	}
	switch rapid.IntRange(0, kinds-1).Draw(t, "kind") {
	case 0:
		err = lib.EncodeNil()
		each(func(w *pack.Writer) { w.Nil() })
	case 1:
		v := rapid.Bool().Draw(t, "bool")
		err = lib.EncodeBool(v)
		each(func(w *pack.Writer) { w.Bool(v) })
	case 2:
		v := rapid.Int64().Draw(t, "int")
		err = lib.EncodeInt(v)
		each(func(w *pack.Writer) { w.Int(v) })
	case 3:
		v := rapid.Uint64().Draw(t, "uint")
		err = lib.EncodeUint(v)
		each(func(w *pack.Writer) { w.Uint(v) })
	case 4:
		v := rapid.Float64().Draw(t, "float")
		err = lib.EncodeFloat64(v)
		each(func(w *pack.Writer) { w.Float(v) })
	case 5:
		v := strings.Repeat("x", lengths.Draw(t, "length"))
		err = lib.EncodeString(v)
		each(func(w *pack.Writer) { w.Str(v) })
	case 6:
		v := make([]byte, lengths.Draw(t, "length"))
		err = lib.EncodeBytes(v)
		each(func(w *pack.Writer) { w.Bin(v) })
	case 7:
		v, typ := make([]byte, lengths.Draw(t, "length")), rapid.Int8().Draw(t, "type")
		if err = lib.EncodeExtHeader(typ, len(v)); err == nil {
			_, err = lib.Writer().Write(v)
		}
		each(func(w *pack.Writer) { w.Ext(typ, v) })
	default:
		n := rapid.SampledFrom([]int{0, 1, 15, 16, 20}).Draw(t, "elements")
		isMap := rapid.Bool().Draw(t, "map")
		if isMap {
			err = lib.EncodeMapLen(n)
			each(func(w *pack.Writer) { w.MapHead(n) })
			n *= 2
		} else {
			err = lib.EncodeArrayLen(n)
			each(func(w *pack.Writer) { w.ArrayHead(n) })
		}
		for range n {
			err = errors.Join(err, write(t, lib, writers, depth-1))
		}
	}
	return err
}

// TestLikeTheLibrary writes values with the library for msgpack and with a Writer, counts
// them, and reads them.
func TestLikeTheLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var want bytes.Buffer
		var w pack.Writer
		counting := pack.Writer{Counting: true}
		lib := msgpack.NewEncoder(&want)
		lib.UseCompactInts(true)
		if err := write(t, lib, []*pack.Writer{&w, &counting}, 3); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(w.Buf, want.Bytes()) {
			t.Fatalf("wrote %.100x, want %.100x", w.Buf, want.Bytes())
		}
		if counting.Size != len(w.Buf) || counting.Buf != nil || counting.Values != w.Values {
			t.Fatalf("counted %d bytes and %d values, wrote %d and %d", counting.Size, counting.Values, len(w.Buf), w.Values)
		}
		var again pack.Writer
		r := pack.NewReader(w.Buf)
		for !r.Done() {
			token, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			rewrite(&again, token)
		}
		if err := r.End(); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(again.Buf, w.Buf) {
			t.Fatalf("read something else: %.100x, want %.100x", again.Buf, w.Buf)
		}
	})
}

func rewrite(w *pack.Writer, t pack.Token) {
	switch t.Kind {
	case pack.Nil:
		w.Nil()
	case pack.Bool:
		w.Bool(t.Bits != 0)
	case pack.Int:
		w.Int(int64(t.Bits))
	case pack.Uint:
		w.Uint(t.Bits)
	case pack.Float:
		w.Float(math.Float64frombits(t.Bits))
	case pack.Str:
		w.Str(string(t.Data))
	case pack.Bin:
		w.Bin(t.Data)
	case pack.Array:
		w.ArrayHead(t.Count)
	case pack.Map:
		w.MapHead(t.Count)
	case pack.Ext:
		w.Ext(t.Type, t.Data)
	default:
		panic(t.Kind)
	}
}

// TestLongNumbers reads numbers in encodings that no Writer uses.
func TestLongNumbers(t *testing.T) {
	for src, want := range map[string]pack.Token{
		"\xcc\x01":                             {Kind: pack.Uint, Bits: 1},
		"\xcf\x00\x00\x00\x00\x00\x00\x00\x02": {Kind: pack.Uint, Bits: 2},
		"\xd0\x05":                             {Kind: pack.Int, Bits: 5},
		"\xd3\xff\xff\xff\xff\xff\xff\xff\xfe": {Kind: pack.Int, Bits: math.MaxUint64 - 1},
		"\xca\x3f\x80\x00\x00":                 {Kind: pack.Float, Bits: math.Float64bits(1)},
	} {
		r := pack.NewReader([]byte(src))
		got, err := r.Next()
		if err != nil || got.Kind != want.Kind || got.Bits != want.Bits || !r.Done() {
			t.Errorf("%x: got %+v, %v", src, got, err)
		}
	}
}

// TestNestedCountsAreBounded: a container cannot claim bytes that the one around it needs.
func TestNestedCountsAreBounded(t *testing.T) {
	r := pack.NewReader([]byte("\x94\x93\xc0\xc0\xc0"))
	if _, err := r.Next(); err != nil {
		t.Fatal(err)
	}
	var bad *pack.Error
	if _, err := r.Next(); !errors.As(err, &bad) || bad.Offset != 1 || bad.Limit {
		t.Errorf("got %v, want an error at byte 1", err)
	}
}

// TestCopy: Copy copies as much as fits, in pieces or at once, and every byte of it.
func TestCopy(t *testing.T) {
	const most = 8<<20 + 3
	src := make([]byte, most)
	for i := range src {
		src[i] = byte(i % 251)
	}
	text := string(src)
	for _, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 512 << 10, 1<<20 + 13, 8<<20 - 1, 8 << 20, most} {
		for _, room := range []int{size, size + 7, size / 2} {
			dst := make([]byte, room+1)
			n := min(size, room)
			if got := pack.Copy(dst[:room], src[:size]); got != n || !bytes.Equal(dst[:n], src[:n]) || slices.Max(append(dst[n:], 0)) != 0 {
				t.Errorf("%d bytes into %d: %d, or not what was there", size, room, got)
			}
			clear(dst)
			if got := pack.Copy(dst[:room], text[:size]); got != n || string(dst[:n]) != text[:n] || slices.Max(append(dst[n:], 0)) != 0 {
				t.Errorf("%d bytes of a string into %d: %d, or not what was there", size, room, got)
			}
		}
	}
}

// TestRaw: a copy in pieces is complete, and in place if the capacity suffices.
func TestRaw(t *testing.T) {
	for _, size := range []int{0, 1, 256<<10 - 1, 256 << 10, 256<<10 + 1, 1<<20 + 13} {
		want := make([]byte, size)
		for i := range want {
			want[i] = byte(i % 251)
		}
		room := make([]byte, 5, 5+size)
		for _, w := range []pack.Writer{{}, {Buf: room}} {
			begun := len(w.Buf)
			w.Raw(want)
			if !bytes.Equal(w.Buf[begun:], want) || begun > 0 && &w.Buf[0] != &room[0] {
				t.Errorf("%d bytes: %d were written behind %d", size, len(w.Buf)-begun, begun)
			}
		}
	}
}
