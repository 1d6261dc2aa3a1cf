package kv_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/kv"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// tensorOf returns a tensor whose data is a count of its bytes.
func tensorOf(t testing.TB, dtype codec.DType, shape ...int) *codec.Tensor {
	t.Helper()
	tensor := codec.Tensor{DType: dtype, Shape: shape}
	size := dtype.Size()
	for _, dim := range shape {
		size *= dim
	}
	tensor.Data = make([]byte, size)
	for i := range tensor.Data {
		tensor.Data[i] = byte(i + 1)
		if dtype == codec.DTypeBool {
			tensor.Data[i] %= 2
		}
	}
	if err := tensor.Validate(); err != nil {
		t.Fatal(err)
	}
	return &tensor
}

// sample has everything that a frame can have: all dtypes, a scalar, layers
// without tensors, and sizes that leave gaps.
func sample(t testing.TB) kv.Payload {
	t.Helper()
	return kv.Payload{
		RequestID: `chat-"é"-<7>`,
		Blocks:    []int64{3, 0, 1 << 40},
		Metadata: map[string]any{
			"seq_len": int64(3), "scale": 1.0, "huge": 1e300, "zero": math.Copysign(0, -1), "big": json.Number("123456789012345678901234567890"),
			"name": "[{\"", "none": nil, "list": []any{int64(1), 2.5, "x", []any{}}, "map": map[string]any{"k": true},
		},
		Layers: []kv.Layer{
			{Key: tensorOf(t, codec.DTypeFloat16, 3, 2, 5), Value: tensorOf(t, codec.DTypeBFloat16, 3, 2, 5)},
			{},
			{Key: tensorOf(t, codec.DTypeBool, 7)},
			{Value: tensorOf(t, codec.DTypeFloat64)},
			{Key: tensorOf(t, codec.DTypeInt8, 1), Value: tensorOf(t, codec.DTypeUint8, 65)},
			{Key: tensorOf(t, codec.DTypeInt16, 9), Value: tensorOf(t, codec.DTypeInt32, 1, 1, 1, 3)},
			{Key: tensorOf(t, codec.DTypeInt64, 2), Value: tensorOf(t, codec.DTypeFloat32, 33)},
			{Key: tensorOf(t, codec.DTypeFloat8E4M3FN, 2, 5), Value: tensorOf(t, codec.DTypeFloat8E5M2, 3)},
			{Key: tensorOf(t, codec.DTypeComplex64, 3), Value: tensorOf(t, codec.DTypeComplex128, 2)},
		},
	}
}

func encode(t testing.TB, p kv.Payload) []byte {
	t.Helper()
	frame, err := kv.Serializer{}.Append(nil, p)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// frame puts a header and data together, as Python would.
func frame(header string, data ...byte) []byte {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(header)))
	return append(append(out, header...), data...)
}

func TestRoundTrip(t *testing.T) {
	for name, want := range map[string]kv.Payload{
		"everything": sample(t),
		"no layers":  {RequestID: "r", Blocks: []int64{}, Metadata: map[string]any{}, Layers: []kv.Layer{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := codec.Decode[kv.Payload](kv.Serializer{}, encode(t, want))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Error(diff)
			}
			if zero, ok := got.Metadata["zero"].(float64); ok && !math.Signbit(zero) {
				t.Error("-0.0 lost its sign")
			}
		})
	}
}

// TestContract is that of package codec.
func TestContract(t *testing.T) {
	s, value := kv.Serializer{}, sample(t)
	want := encode(t, value)
	for _, v := range []any{value, &value} {
		n, ok := s.Size(v)
		if !ok || n != len(want) {
			t.Fatalf("Size of %T = %d, %v, want %d", v, n, ok, len(want))
		}
		// Reserved memory holds what was there before; none of it may stay.
		dst := bytes.Repeat([]byte{0xee}, n)
		if err := s.EncodeInto(dst, v); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(dst, want) {
			t.Errorf("EncodeInto of %T differs from Append", v)
		}
	}
	room := bytes.Repeat([]byte{0xee}, len(want)+9)
	copy(room, "before")
	got, err := s.Append(room[:6], value)
	if err != nil || &got[0] != &room[0] || string(got[:6]) != "before" || !bytes.Equal(got[6:], want) {
		t.Errorf("Append did not stay in place: %v", err)
	}
	for _, n := range []int{0, len(want) - 1, len(want) + 1} {
		var size *codec.SizeError
		if err := s.EncodeInto(make([]byte, n), value); !errors.As(err, &size) || size.Got != n || size.Want != len(want) {
			t.Errorf("EncodeInto %d bytes: got %v, want a SizeError", n, err)
		}
	}
	for _, bad := range []any{nil, 1, "text", (*kv.Payload)(nil), codec.Tensor{}} {
		if n, ok := s.Size(bad); ok {
			t.Errorf("Size of a %T = %d, true", bad, n)
		}
		if _, err := s.Append(nil, bad); !errors.Is(err, codec.ErrType) {
			t.Errorf("Append of a %T: got %v, want ErrType", bad, err)
		}
		if err := s.EncodeInto(nil, bad); !errors.Is(err, codec.ErrType) {
			t.Errorf("EncodeInto of a %T: got %v, want ErrType", bad, err)
		}
		if err := s.Decode(want, bad); !errors.Is(err, codec.ErrType) {
			t.Errorf("Decode into a %T: got %v, want ErrType", bad, err)
		}
	}
}

// TestFormat compares with a frame as vLLM-Omni writes it, but for the spaces
// and gaps, which the header tells.
func TestFormat(t *testing.T) {
	got := encode(t, kv.Payload{
		RequestID: "r", Blocks: []int64{1, 2}, Metadata: map[string]any{"scale": 1.0, "seq_len": 2},
		Layers: []kv.Layer{{
			Key:   &codec.Tensor{DType: codec.DTypeBFloat16, Shape: []int{2, 1}, Data: []byte{0x80, 0x3f, 0, 0x40}},
			Value: &codec.Tensor{DType: codec.DTypeUint8, Shape: []int{3}, Data: []byte{1, 2, 3}},
		}, {}},
	})
	const header = `{"rid":"r","bids":[1,2],"meta":{"scale":1.0,"seq_len":2},"td":[` +
		`{"n":"key_cache_0","i":0,"d":"bfloat16","s":[2,1],"o":0,"b":4},{"n":"key_cache_1","x":true},` +
		`{"n":"value_cache_0","i":0,"d":"uint8","s":[3],"o":64,"b":3},{"n":"value_cache_1","x":true}],"nl":2}`
	padded := header + strings.Repeat(" ", 316-len(header))
	want := append(frame(padded, 0x80, 0x3f, 0, 0x40), make([]byte, 60)...)
	want = append(want, 1, 2, 3)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// TestViews: decoding copies no tensor, and what this package writes is
// aligned for vectors.
func TestViews(t *testing.T) {
	payload := encode(t, sample(t))
	got, err := codec.Decode[kv.Payload](kv.Serializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	for i, layer := range got.Layers {
		for _, tensor := range []*codec.Tensor{layer.Key, layer.Value} {
			if tensor == nil {
				continue
			}
			at := bytes.Index(payload, tensor.Data)
			for at >= 0 && &payload[at] != &tensor.Data[0] {
				next := bytes.Index(payload[at+1:], tensor.Data)
				if next < 0 {
					at = -1
					break
				}
				at += 1 + next
			}
			if at < 0 {
				t.Fatalf("layer %d: %v is not a view of the payload", i, tensor)
			}
			if at%64 != 0 {
				t.Errorf("layer %d: %v begins at byte %d", i, tensor, at)
			}
			if cap(tensor.Data) != len(tensor.Data) {
				t.Errorf("layer %d: %v reaches beyond its data", i, tensor)
			}
		}
	}
}

// TestPrivateHeader: whoever writes to the payload does not come between the
// checks of the header and its use.
func TestPrivateHeader(t *testing.T) {
	payload := frame(`{"rid":"r"}`, 1)
	text, data, err := kv.Split(payload)
	if err != nil {
		t.Fatal(err)
	}
	clear(payload)
	if string(text) != `{"rid":"r"}` || data[0] != 0 {
		t.Errorf("header %q, data %x after the payload was cleared", text, data)
	}
}

// TestOneCopy: what encoding and decoding allocate has nothing to do with the
// size of the tensors.
func TestOneCopy(t *testing.T) {
	const size = 16 << 20
	big := kv.Payload{Layers: []kv.Layer{{
		Key:   &codec.Tensor{DType: codec.DTypeUint8, Shape: []int{size}, Data: make([]byte, size)},
		Value: &codec.Tensor{DType: codec.DTypeUint8, Shape: []int{size}, Data: make([]byte, size)},
	}}}
	s := kv.Serializer{}
	n, _ := s.Size(big)
	dst := make([]byte, n)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := s.EncodeInto(dst, big); err != nil {
		t.Fatal(err)
	}
	if _, err := codec.Decode[kv.Payload](s, dst); err != nil {
		t.Fatal(err)
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > size/4 {
		t.Errorf("%d bytes allocated around tensors of %d", got, size)
	}
}

// TestStore sends a frame through a store: encoded in place, read where it
// lies.
func TestStore(t *testing.T) {
	store, err := shmstore.Create(shmstore.Options{ArenaBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	want := sample(t)
	size, _ := kv.Serializer{}.Size(want)
	room, err := store.Reserve(size, kv.Serializer{}.ID(), 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := (kv.Serializer{}).EncodeInto(room.Bytes(), want); err != nil {
		t.Fatal(err)
	}
	handle, err := room.Commit(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	if codec.ID(handle.Codec) != codec.IDKV {
		t.Errorf("codec %d in the handle", handle.Codec)
	}
	lease, err := store.Local().Take(handle)
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Release()
	got, err := codec.Decode[kv.Payload](kv.Serializer{}, lease.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		t.Error(diff)
	}
	if _, err := codec.View[float64](*got.Layers[3].Value); err != nil {
		t.Error(err)
	}
}

func TestEncodeRefuses(t *testing.T) {
	layers := func(key codec.Tensor) kv.Payload { return kv.Payload{Layers: []kv.Layer{{}, {Key: &key}}} }
	deep := map[string]any{}
	for range kv.MaxHeaderDepth {
		deep = map[string]any{"d": deep}
	}
	tests := []struct {
		name  string
		p     kv.Payload
		field string
		want  error
	}{
		{"request ID", kv.Payload{RequestID: "\xff"}, "rid", codec.ErrType},
		{"layers", kv.Payload{Layers: make([]kv.Layer, kv.MaxLayers+1)}, "nl", codec.ErrLimit},
		{"shape", layers(codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte{1}}), "key_cache_1", codec.ErrShape},
		{"dtype", layers(codec.Tensor{DType: codec.DTypeUint32, Shape: []int{1}, Data: make([]byte, 4)}), "key_cache_1", codec.ErrType},
		{"empty", layers(codec.Tensor{DType: codec.DTypeInt8, Shape: []int{0}}), "key_cache_1", codec.ErrType},
		{"metadata of no JSON", kv.Payload{Metadata: map[string]any{"c": make(chan int)}}, "meta", codec.ErrType},
		{"not a number", kv.Payload{Metadata: map[string]any{"c": []any{math.NaN()}}}, "meta", codec.ErrType},
		{"depth", kv.Payload{Metadata: deep}, "header", codec.ErrLimit},
		{"size", kv.Payload{RequestID: strings.Repeat("r", kv.MaxHeaderBytes)}, "header_len", codec.ErrLimit},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := kv.Serializer{}.Append(nil, tt.p)
			checkField(t, err, tt.field, tt.want)
			if _, ok := (kv.Serializer{}).Size(tt.p); ok {
				t.Error("Size says that it can be encoded")
			}
		})
	}
}

func checkField(t *testing.T, err error, field string, want error) {
	t.Helper()
	if !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "codec: kv: "+field+": ") {
		t.Errorf("got %v, want %q and the field %q", err, want, field)
	}
}

func TestDecodeRefuses(t *testing.T) {
	// with returns a frame of two layers and eight bytes of data.
	with := func(descriptors string) []byte {
		return frame(`{"rid":"r","bids":[],"meta":{},"td":[`+descriptors+`],"nl":2}`, make([]byte, 8)...)
	}
	const good = `{"n":"key_cache_0","i":0,"d":"int8","s":[4],"o":0,"b":4}`
	top := func(old, updated string) []byte {
		const header = `{"rid":"r","bids":[],"meta":{},"td":[],"nl":2}`
		return frame(strings.Replace(header, old, updated, 1))
	}
	td := func(old, updated string) []byte { return with(strings.Replace(good, old, updated, 1)) }
	tests := []struct {
		name  string
		src   []byte
		field string
		want  error
	}{
		{"nothing", nil, "header_len", codec.ErrMalformed},
		{"three bytes", []byte{0, 0, 0}, "header_len", codec.ErrMalformed},
		{"header beyond the end", []byte{0, 0, 0, 3, '{', '}'}, "header_len", codec.ErrMalformed},
		{"header length of all ones", bytes.Repeat([]byte{0xff}, 8), "header_len", codec.ErrMalformed},
		{"header beyond the limit", frame(strings.Repeat(" ", kv.MaxHeaderBytes) + "{}"), "header_len", codec.ErrLimit},
		{"header of nothing", frame(""), "header", codec.ErrMalformed},
		{"header of a list", frame("[]"), "header", codec.ErrMalformed},
		{"header of two values", frame("{}{}"), "header", codec.ErrMalformed},
		{"header cut short", frame(`{"rid":"r"`), "header", codec.ErrMalformed},
		{"header not UTF-8", frame("{\"rid\":\"\xff\"}"), "header", codec.ErrMalformed},
		{"header too deep", frame(strings.Repeat(`[`, kv.MaxHeaderDepth+1)), "header", codec.ErrLimit},
		{"no rid", top(`"rid"`, `"RID"`), "rid", codec.ErrMalformed},
		{"rid a number", top(`"r"`, `1`), "rid", codec.ErrMalformed},
		{"rid null", top(`"r"`, `null`), "rid", codec.ErrMalformed},
		{"no bids", top(`"bids"`, `"ids"`), "bids", codec.ErrMalformed},
		{"bids a fraction", top(`"bids":[]`, `"bids":[1.5]`), "bids", codec.ErrMalformed},
		{"no meta", top(`"meta"`, `"m"`), "meta", codec.ErrMalformed},
		{"meta a list", top(`"meta":{}`, `"meta":[]`), "meta", codec.ErrMalformed},
		{"no td", top(`"td"`, `"t"`), "td", codec.ErrMalformed},
		{"td null", top(`"td":[]`, `"td":null`), "td", codec.ErrMalformed},
		{"no nl", top(`"nl"`, `"n"`), "nl", codec.ErrMalformed},
		{"nl null", top(`"nl":2`, `"nl":null`), "nl", codec.ErrMalformed},
		{"nl negative", top(`"nl":2`, `"nl":-1`), "nl", codec.ErrMalformed},
		{"nl beyond the limit", top(`"nl":2`, `"nl":1000000000`), "nl", codec.ErrLimit},
		{"nl beyond int64", top(`"nl":2`, `"nl":9223372036854775808`), "nl", codec.ErrMalformed},

		{"tensor a number", with("1"), "td[0]", codec.ErrMalformed},
		{"no name", td(`"n":"key_cache_0",`, ``), "td[0].n", codec.ErrMalformed},
		{"name of neither", td(`key_cache_0`, `cross_cache_0`), "td[0].n", codec.ErrMalformed},
		{"name of both", td(`key_cache_0`, `key_cache_value_cache_0`), "td[0].n", codec.ErrMalformed},
		{"no layer", td(`"key_cache_0","i":0`, `"key_cache_"`), "td[0].n", codec.ErrMalformed},
		{"layer with a sign", td(`"key_cache_0","i":0`, `"key_cache_-0"`), "td[0].n", codec.ErrMalformed},
		{"layer negative", td(`"i":0`, `"i":-1`), "td[0].i", codec.ErrMalformed},
		{"layer beyond the last", with(`{"n":"key_cache_2","i":2,"d":"int8","s":[4],"o":0,"b":4}`), "td[0].i", codec.ErrMalformed},
		{"layer in the name beyond the last", with(`{"n":"value_cache_2","d":"int8","s":[4],"o":0,"b":4}`), "td[0].i", codec.ErrMalformed},
		{"twice", with(good + "," + strings.Replace(good, `"o":0`, `"o":4`, 1)), "td[1].n", codec.ErrMalformed},
		{"no dtype", td(`"d":"int8",`, ``), "td[0].d", codec.ErrMalformed},
		{"dtype that a tensor lacks", td(`int8`, `float8_e4m3fnuz`), "td[0].d", codec.ErrMismatch},
		{"dtype that a frame lacks", td(`"int8","s":[4]`, `"uint32","s":[1]`), "td[0].d", codec.ErrMismatch},
		{"dtype of no kind", td(`int8`, `object`), "td[0].d", codec.ErrMismatch},
		{"no shape", td(`"s":[4],`, ``), "td[0].s", codec.ErrMalformed},
		{"shape null", td(`[4]`, `null`), "td[0].s", codec.ErrMalformed},
		{"shape of another size", td(`[4]`, `[5]`), "td[0].s", codec.ErrMalformed},
		{"shape to be worked out", td(`[4]`, `[-1]`), "td[0].s", codec.ErrMalformed},
		{"shape that overflows", td(`[4]`, `[4294967296,4294967296]`), "td[0].s", codec.ErrMalformed},
		{"shape of text", td(`[4]`, `["4"]`), "td[0].s", codec.ErrMalformed},
		{"no offset", td(`"o":0,`, ``), "td[0].o", codec.ErrMalformed},
		{"offset negative", td(`"o":0`, `"o":-1`), "td[0].o", codec.ErrMalformed},
		{"offset beyond the end", td(`"o":0`, `"o":9`), "td[0].o", codec.ErrMalformed},
		{"offset of text", td(`"o":0`, `"o":"0"`), "td[0].o", codec.ErrMalformed},
		{"no size", td(`,"b":4`, ``), "td[0].b", codec.ErrMalformed},
		{"size negative", td(`"b":4`, `"b":-4`), "td[0].b", codec.ErrMalformed},
		{"size beyond the end", td(`"o":0`, `"o":5`), "td[0].b", codec.ErrMalformed},
		{"offset and size overflow", td(`"o":0,"b":4`, `"o":4,"b":9223372036854775807`), "td[0].b", codec.ErrMalformed},
		{"overlap", with(good + `,{"n":"value_cache_0","i":0,"d":"int8","s":[2],"o":3,"b":2}`), "td[1].o", codec.ErrMalformed},
		{"one inside another", with(`{"n":"key_cache_1","d":"int8","s":[1],"o":2,"b":1},` + good), "td[0].o", codec.ErrMalformed},
	}
	if _, err := codec.Decode[kv.Payload](kv.Serializer{}, with(good)); err != nil {
		t.Fatalf("the frame that the others are made from: %v", err)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := codec.Decode[kv.Payload](kv.Serializer{}, tt.src)
			checkField(t, err, tt.field, tt.want)
		})
	}
}

func TestDecodeAccepts(t *testing.T) {
	one := func(p kv.Payload) string { return fmt.Sprint(p.Layers[0].Key, p.Layers[0].Value) }
	tests := []struct {
		name, header string
		data         []byte
		want         string
	}{
		{"tensors out of order, with a gap, and bytes behind them", `{"rid":"","bids":[],"meta":{},"td":[` +
			`{"n":"value_cache_0","i":0,"d":"int8","s":[2],"o":4,"b":2},{"n":"key_cache_0","i":0,"d":"int8","s":[1],"o":1,"b":1}],"nl":1}`, []byte{0, 1, 0, 0, 2, 3, 0, 0}, "int8[1] int8[2]"},
		{"no index but in the name", `{"rid":"","bids":[],"meta":{},"td":[{"n":"key_cache_0","d":"int8","s":[1],"o":0,"b":1}],"nl":1}`, []byte{1}, "int8[1] <nil>"},
		{"an index that the name does not have", `{"rid":"","bids":[],"meta":{},"td":[{"n":"value_cache_7","i":0,"d":"int8","s":[1],"o":0,"b":1}],"nl":1}`, []byte{1}, "<nil> int8[1]"},
		{"no elements", `{"rid":"","bids":[],"meta":{},"td":[{"n":"key_cache_0","i":0,"d":"int8","s":[0,4],"o":0,"b":0}],"nl":1}`, nil, "int8[0 4] <nil>"},
		{"None", ` {"rid":"","bids":null,"meta":null,"td":[{"x":true}],"nl":1} `, nil, "<nil> <nil>"},
		{"fields of a later version", `{"rid":"","bids":[],"meta":{},"td":[{"n":"key_cache_0","x":true,"z":1}],"nl":1,"z":[{}]}`, nil, "<nil> <nil>"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := codec.Decode[kv.Payload](kv.Serializer{}, frame(tt.header, tt.data...))
			if err != nil {
				t.Fatal(err)
			}
			if got := one(p); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}
