package codec_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/vmihailenco/msgpack/v5"
	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// chunk is a value like those that stages send.
type chunk struct {
	Request  string            `msgpack:"request"`
	Sequence int64             `msgpack:"sequence"`
	Tokens   []int32           `msgpack:"tokens"`
	Scores   []float64         `msgpack:"scores"`
	Labels   map[string]string `msgpack:"labels"`
	Audio    []byte            `msgpack:"audio"`
	Final    bool              `msgpack:"final"`
	Sent     time.Time         `msgpack:"sent"`
	Embed    *codec.Tensor     `msgpack:"embed"`
	Next     *chunk            `msgpack:"next"`
}

func drawChunk(t *rapid.T, depth int) chunk {
	text := rapid.StringN(-1, -1, 40)
	c := chunk{
		Request:  text.Draw(t, "request"),
		Sequence: rapid.Int64().Draw(t, "sequence"),
		Tokens:   rapid.SliceOfN(rapid.Int32(), 0, 20).Draw(t, "tokens"),
		Scores:   rapid.SliceOfN(rapid.Float64(), 0, 5).Draw(t, "scores"),
		Labels:   rapid.MapOfN(text, text, 0, 5).Draw(t, "labels"),
		Audio:    rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "audio"),
		Final:    rapid.Bool().Draw(t, "final"),
		Sent:     time.Unix(rapid.Int64Range(-1<<40, 1<<40).Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds")),
	}
	if rapid.Bool().Draw(t, "has embed") {
		data := rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "embed")
		c.Embed = &codec.Tensor{DType: codec.DTypeFloat16, Shape: []int{2, 1}, Data: data}
	}
	if depth > 0 && rapid.Bool().Draw(t, "has next") {
		next := drawChunk(t, depth-1)
		c.Next = &next
	}
	return c
}

func TestMsgpackRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := drawChunk(t, 3)
		payload, err := codec.MsgpackSerializer{}.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		again, err := codec.MsgpackSerializer{}.Append(nil, want)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(payload, again) {
			t.Fatalf("two encodings of one value:\n%x\n%x", payload, again)
		}
		got, err := codec.Decode[chunk](codec.MsgpackSerializer{}, payload)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, cmpopts.EquateNaNs()); diff != "" {
			t.Fatalf("changed (-want +got):\n%s", diff)
		}
	})
}

func TestMsgpackEncoding(t *testing.T) {
	tensor := codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{2, 2}, Data: []byte("\x00\x00\x80\x3f\x00\x00\x00\x40\x00\x00\x40\x40\x00\x00\x80\x40")}
	empty := codec.Tensor{DType: codec.DTypeFloat32, Shape: []int{0}}
	tests := []struct {
		name  string
		value any
		want  string // hex
	}{
		{"nil", nil, "c0"},
		{"compact int", int64(5), "05"},
		{"compact negative int", int64(-5), "fb"},
		{"int that needs two bytes", uint64(300), "cd012c"},
		{"float stays float", 1.0, "cb3ff0000000000000"},
		{"sorted any", map[string]any{"c": 1, "a": 2, "b": 3}, "83a16102a16203a16301"},
		{"sorted string", map[string]string{"c": "", "a": "", "b": ""}, "83a161a0a162a0a163a0"},
		{"sorted bool", map[string]bool{"b": true, "a": false}, "82a161c2a162c3"},
		{"bytes", []byte{1, 2}, "c4020102"},
		{"tensor", tensor, "84aa5f5f74656e736f725f5fc3a56474797065a7666c6f61743332a57368617065920202a464617461c4100000803f000000400000404000008040"},
		{"empty tensor", &empty, "84aa5f5f74656e736f725f5fc3a56474797065a7666c6f61743332a573686170659100a464617461c400"},
		{"no tensor", (*codec.Tensor)(nil), "c0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := codec.MsgpackSerializer{}.Append(nil, tt.value)
			if err != nil {
				t.Fatal(err)
			}
			if hex.EncodeToString(got) != tt.want {
				t.Errorf("got %x, want %s", got, tt.want)
			}
		})
	}
}

// TestMsgpackTensorInAny decodes a tensor into an any, which gives a map.
func TestMsgpackTensorInAny(t *testing.T) {
	tensor := codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte{1, 2}}
	payload, err := codec.MsgpackSerializer{}.Append(nil, map[string]any{"t": tensor})
	if err != nil {
		t.Fatal(err)
	}
	got, err := codec.Decode[any](codec.MsgpackSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"t": map[string]any{"__tensor__": true, "dtype": "int8", "shape": []any{int8(2)}, "data": []byte{1, 2}}}
	if diff := cmp.Diff(any(want), got); diff != "" {
		t.Error(diff)
	}
	typed, err := codec.Decode[map[string]codec.Tensor](codec.MsgpackSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(tensor, typed["t"]); diff != "" {
		t.Error(diff)
	}
}

func TestMsgpackTensorMalformed(t *testing.T) {
	tests := []struct {
		name  string
		value any
		want  error
	}{
		{"no fields", map[string]any{}, codec.ErrShape},
		{"no data", map[string]any{"dtype": "int8", "shape": []int{2}}, codec.ErrShape},
		{"nil data", map[string]any{"dtype": "int8", "shape": []int{2}, "data": nil}, codec.ErrShape},
		{"nil shape", map[string]any{"dtype": "int8", "shape": nil, "data": []byte{1, 2}}, codec.ErrShape},
		{"unknown dtype", map[string]any{"dtype": "complex32", "shape": []int{1}, "data": []byte{1}}, codec.ErrShape},
		{"wrong size", map[string]any{"dtype": "int8", "shape": []int{2}, "data": []byte{1}}, codec.ErrShape},
		{"negative", map[string]any{"dtype": "int8", "shape": []int{-1}, "data": []byte{1}}, codec.ErrShape},
		{"many dimensions", map[string]any{"dtype": "int8", "shape": make([]int, 33), "data": []byte{}}, codec.ErrShape},
		{"data is text", map[string]any{"dtype": "int8", "shape": []int{1}, "data": []int{1}}, codec.ErrMismatch},
		{"an array", []int{1, 2, 3}, codec.ErrMismatch},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload, err := codec.MsgpackSerializer{}.Append(nil, tt.value)
			if err != nil {
				t.Fatal(err)
			}
			_, err = codec.Decode[codec.Tensor](codec.MsgpackSerializer{}, payload)
			if !errors.Is(err, tt.want) || !errors.Is(err, codec.ErrMismatch) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
		})
	}
}

// TestMsgpackDecodeCopies changes the payload under a decoded value.
func TestMsgpackDecodeCopies(t *testing.T) {
	want := map[string]any{"bytes": []byte("some bytes"), "text": "some text"}
	payload, err := codec.MsgpackSerializer{}.Append(nil, want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := codec.Decode[map[string]any](codec.MsgpackSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := codec.Decode[msgpack.RawMessage](codec.MsgpackSerializer{}, payload)
	if err != nil {
		t.Fatal(err)
	}
	before := bytes.Clone(raw)
	for i := range payload {
		payload[i] ^= 0xff
	}
	// And once more with the same decoder, whose buffers are reused.
	if _, err := codec.Decode[any](codec.MsgpackSerializer{}, []byte("\xd9\x20"+strings.Repeat("x", 32))); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if !bytes.Equal(raw, before) {
		t.Error("a raw message changed")
	}
}

// saboteur rewrites the payload while it is decoded, as a producer with
// write access to it could.
type saboteur struct{}

var sabotaged []byte

func (*saboteur) DecodeMsgpack(dec *msgpack.Decoder) error {
	copy(sabotaged[2:], "\xdd\xff\xff\xff\xff") // an array of 2^32
	return dec.Skip()
}

func TestMsgpackPayloadChangesWhileDecoding(t *testing.T) {
	var got struct {
		_msgpack struct{} `msgpack:",as_array"`
		First    saboteur
		Second   any
	}
	sabotaged = []byte("\x92\x00\x95\x01\x02\x03\x04\x05")
	if err := (codec.MsgpackSerializer{}).Decode(sabotaged, &got); err != nil {
		t.Fatal(err)
	}
	if want := []any{int8(1), int8(2), int8(3), int8(4), int8(5)}; !cmp.Equal(got.Second, any(want)) {
		t.Errorf("got %v, want the checked value, %v", got.Second, want)
	}
}

func nested(depth int, open string) []byte {
	return []byte(strings.Repeat(open, depth) + "\xc0")
}

func TestMsgpackHostile(t *testing.T) {
	tests := []struct {
		name   string
		src    string
		want   error
		offset int
	}{
		{"empty", "", codec.ErrMalformed, 0},
		{"never used code", "\xc1", codec.ErrMalformed, 0},
		{"two values", "\xc0\xc0", codec.ErrMalformed, 1},
		{"cut number", "\xcf\x00", codec.ErrMalformed, 0},
		{"cut length", "\xdd\xff\xff", codec.ErrMalformed, 1},
		{"cut text", "\xa3ab", codec.ErrMalformed, 0},
		{"missing element", "\x92\xc0", codec.ErrMalformed, 0},
		{"missing inner element", "\x92\x91\xc0", codec.ErrMalformed, 1},
		{"missing map value", "\x81\xa1k", codec.ErrMalformed, 3},
		{"huge array", "\xdd\xff\xff\xff\xff", codec.ErrMalformed, 0},
		{"huge map", "\xdf\xff\xff\xff\xff", codec.ErrMalformed, 0},
		{"map count that doubles to nothing", "\xdf\x80\x00\x00\x00", codec.ErrMalformed, 0},
		{"huge text", "\xdb\xff\xff\xff\xff", codec.ErrMalformed, 0},
		{"huge bytes", "\xc6\xff\xff\xff\xff", codec.ErrMalformed, 0},
		{"huge extension", "\xc9\xff\xff\xff\xff\xff", codec.ErrMalformed, 0},
		{"huge inside", "\x91\xdd\xff\xff\xff\xff", codec.ErrMalformed, 1},
		{"extension without type", "\xc7\x00", codec.ErrMalformed, 0},
		{"extension without data", "\xd4\x05", codec.ErrMalformed, 0},
		{"text that is not UTF-8", "\x91\xa1\xff", codec.ErrMalformed, 1},
		{"surrogate as text", "\xa3\xed\xa0\x80", codec.ErrMalformed, 0},
		{"key that is not UTF-8", "\x81\xa1\xff\xc0", codec.ErrMalformed, 1},
		{"interned string", "\xd4\x80\x00", codec.ErrMalformed, 0},
		{"deep arrays", string(nested(65, "\x91")), codec.ErrLimit, 64},
		{"deep maps", string(nested(65, "\x81\xc0")), codec.ErrLimit, 128},
		{"a stack killer", string(nested(10_000_000, "\x91")), codec.ErrLimit, 64},
		{"too many values", "\xdd\x00\x40\x00\x00" + strings.Repeat("\xc0", 1<<22), codec.ErrLimit, 5 + 1<<22 - 1},
	}
	targets := []any{new(any), new(map[string]any), new([]any), new([]string), new(string), new([]byte), new(chunk), new(codec.Tensor)}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			targets := targets
			if len(tt.src) > 1<<20 {
				targets = targets[:1] // the scan comes first and does not depend on the target
			}
			for _, target := range targets {
				var bad *codec.PayloadError
				allocated, err := codectest.AllocatedBy(func() error { return codec.MsgpackSerializer{}.Decode([]byte(tt.src), target) })
				if !errors.As(err, &bad) || !errors.Is(err, tt.want) {
					t.Fatalf("into %T: got %v, want %v", target, err, tt.want)
				}
				if bad.Offset != tt.offset {
					t.Errorf("into %T: offset %d, want %d: %v", target, bad.Offset, tt.offset, err)
				}
				// The private copy, the one made by the test, and small change.
				if limit := uint64(3*len(tt.src) + 1<<20); allocated > limit {
					t.Errorf("into %T: %d bytes of payload made it allocate %d", target, len(tt.src), allocated)
				}
			}
		})
	}
}

func TestMsgpackLimitsAreReached(t *testing.T) {
	for name, src := range map[string][]byte{
		"arrays":              nested(64, "\x91"),
		"maps":                nested(64, "\x81\xa0"),
		"empty at the bottom": append(nested(64, "\x91")[:64], 0x90),
	} {
		if _, err := codec.Decode[any](codec.MsgpackSerializer{}, src); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	most := append([]byte("\xdd\x00\x3f\xff\xff"), make([]byte, 1<<22-1)...)
	if err := codec.ScanMsgpack(most); err != nil {
		t.Error(err)
	}
}

// TestMsgpackExtensionAsMap sends a map's code as the data of an extension,
// which the library decodes as a map if the target is a map.
func TestMsgpackExtensionAsMap(t *testing.T) {
	huge := "\xdf\xff\xff\xff"           // then one byte more of the count
	inner := "\x81\xa1k\xdd\xff\xff\xff" // a map of an array of 2^32
	tests := []struct {
		name   string
		src    string
		target any
	}{
		{"first element", "\x92\xd6\xff" + huge + "\x70", new([]map[string]any)},
		{"strings", "\x92\xd6\xff" + huge + "\x70", new([]map[string]string)},
		{"typed map", "\x92\xd6\xff" + huge + "\x70", new([]map[string]int)},
		{"struct field", "\x81\xa6labels\xd6\xff" + huge, new(chunk)},
		{"inner length", "\x92\xd7\xff" + inner + "\xff\x70", new([]map[string]any)},
		{"fixext 1", "\x95\xd4\x05\xdf\x7f\x7f\x7f\x7f", new([]map[string]any)},
		{"ext 8", "\x92\xc7\x04\x05" + huge + "\x70", new([]map[string]any)},
		{"second extension", "\x93\xd6\xff\x00\x00\x00\x00\xd6\xff" + huge + "\x70", new([]map[string]any)},
		{"top level tensor", "\xd6\xff" + huge, new(codec.Tensor)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := codec.ScanMsgpack([]byte(tt.src)); err != nil {
				t.Fatalf("the stream is well formed, but: %v", err)
			}
			allocated, err := codectest.AllocatedBy(func() error { return codec.MsgpackSerializer{}.Decode([]byte(tt.src), tt.target) })
			if !errors.Is(err, codec.ErrMismatch) {
				t.Errorf("got %v, want ErrMismatch", err)
			}
			if allocated > 1<<20 {
				t.Errorf("allocated %d bytes", allocated)
			}
		})
	}
}

func TestMsgpackMismatch(t *testing.T) {
	tests := []struct {
		name   string
		src    string
		target any
	}{
		{"text into a number", "\xa1x", new(int)},
		{"number into a struct", "\x05", new(chunk)},
		{"unknown extension", "\xd4\x05\x00", new(any)},
		// Values on which the library panics.
		{"slice as a key", "\x81\x90\xc0", new(map[any]any)},
		{"no such interface", "\x81\xa1R\x05", new(struct{ R io.Reader })},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := codec.ScanMsgpack([]byte(tt.src)); err != nil {
				t.Fatal(err)
			}
			err := codec.MsgpackSerializer{}.Decode([]byte(tt.src), tt.target)
			if !errors.Is(err, codec.ErrMismatch) {
				t.Errorf("got %v, want ErrMismatch", err)
			}
			if want := fmt.Sprintf("decode into %T", tt.target); err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("text %q lacks %q", err, want)
			}
		})
	}
}

// TestMsgpackPickled: the error for a pickled object, which vLLM can send, says that it is never
// loaded.
func TestMsgpackPickled(t *testing.T) {
	for src, want := range map[string]string{
		"\xd4\x01\x00":              "byte 0: extension 1 holds a pickled Python object",
		"\x92\x07\xc7\x02\x02ab":    "byte 2: extension 2 holds a pickled Python object",
		"\x92\xd4\x05\x00\xd4\x01a": "unknown ext id=5",
	} {
		err := codec.MsgpackSerializer{}.Decode([]byte(src), new(any))
		if !errors.Is(err, codec.ErrMismatch) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", src, err, want)
		}
	}
}

// garbage encodes itself as bytes that are no msgpack value.
type garbage struct{}

func (garbage) MarshalMsgpack() ([]byte, error) { return []byte{0xc1}, nil }

// TestMsgpackAppendRefuses checks that values that no consumer could decode fail at
// the producer.
func TestMsgpackAppendRefuses(t *testing.T) {
	deep := any(nil)
	for range 65 {
		deep = []any{deep}
	}
	type interned struct {
		A string `msgpack:",intern"`
		B string `msgpack:",intern"`
	}
	tests := []struct {
		name  string
		value any
		want  error
	}{
		{"too deep", deep, codec.ErrLimit},
		{"garbage", garbage{}, codec.ErrMalformed},
		{"text that is not UTF-8", []string{"a", "\xff"}, codec.ErrMalformed},
		{"function", func() {}, codec.ErrType},
		{"channel inside", map[string]any{"c": make(chan int)}, codec.ErrType},
		{"interned strings", interned{"again", "again"}, codec.ErrMalformed},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dst := []byte("before")
			got, err := codec.MsgpackSerializer{}.Append(dst, tt.value)
			if !errors.Is(err, tt.want) {
				t.Errorf("got %v, want %v", err, tt.want)
			}
			if string(got) != "before" {
				t.Errorf("dst is %q after an error", got)
			}
			// The state of a failed encoder does not affect the next one.
			if got, err := (codec.MsgpackSerializer{}).Append(nil, "fine"); err != nil || string(got) != "\xa4fine" {
				t.Errorf("next: %q, %v", got, err)
			}
		})
	}
}

// TestKeysOfMaps: a map keeps its keys, and the error for a key that Go cannot have names it.
func TestKeysOfMaps(t *testing.T) {
	for encoded, want := range map[string]any{
		"82c001a002":                 map[any]any{nil: int8(1), "": int8(2)},
		"81cdc450cb3ff0000000000000": map[any]any{int64(50256): 1.0},
		"83a16101c202ff03":           map[any]any{"a": int8(1), false: int8(2), int64(-1): int8(3)},
		"82a16101a16202":             map[string]any{"a": int8(1), "b": int8(2)},
		"81a16181050a":               map[string]any{"a": map[any]any{int64(5): int8(10)}},
	} {
		src, err := hex.DecodeString(encoded)
		if err != nil {
			t.Fatal(err)
		}
		var got any
		if err := (codec.MsgpackSerializer{}).Decode(src, &got); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is %#v, %v, want %#v", encoded, got, err, want)
		}
		again, err := codec.MsgpackSerializer{}.Append(nil, got)
		if err != nil {
			t.Errorf("%s: %v", encoded, err)
		}
		var back any
		if err := (codec.MsgpackSerializer{}).Decode(again, &back); err != nil || !reflect.DeepEqual(back, want) {
			t.Errorf("%s is %#v at the next stage, %v", encoded, back, err)
		}
	}
	type nested struct{ M []map[string]int }
	for name, tc := range map[string]struct {
		encoded string
		into    any
		says    string
	}{
		"nil as text":        {"81c001", new(map[string]int), "byte 1: nil as the key of a map, which has text here"},
		"bytes as text":      {"81c4016b01", new(map[string]int), `byte 1: the bytes "k" as the key of a map, which has text here`},
		"bytes, deeper":      {"81a14d9181c4016b01", new(nested), `byte 5: the bytes "k" as the key`},
		"bytes in an any":    {"81c4016b01", new(any), "the key of a map, which Go cannot have"},
		"a tuple in an any":  {"8192000101", new(any), "the key of a map, which Go cannot have"},
		"a number as a text": {"810501", new(map[string]int), "invalid code=5"},
	} {
		src, err := hex.DecodeString(tc.encoded)
		if err != nil {
			t.Fatal(err)
		}
		if err := (codec.MsgpackSerializer{}).Decode(src, tc.into); !errors.Is(err, codec.ErrMismatch) || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: %v, want %q", name, err, tc.says)
		}
	}
	var kept map[[1]byte]int
	if err := (codec.MsgpackSerializer{}).Decode([]byte{0x81, 0xc4, 1, 'k', 1}, &kept); err != nil || kept[[1]byte{'k'}] != 1 {
		t.Errorf("a map of arrays of bytes: %v, %v", kept, err)
	}
}
