package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/codec/internal/codectest"
)

// FuzzMsgpackScan compares the scan with the library's own reader, which accepts
// interned strings and text that is not UTF-8.
func FuzzMsgpackScan(f *testing.F) {
	addMsgpackSeeds(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		err := codec.ScanMsgpack(src)
		rest := bytes.NewReader(src)
		skipErr := msgpack.NewDecoder(rest).Skip()
		switch {
		case err == nil && (skipErr != nil || rest.Len() != 0):
			t.Fatalf("accepted, but the library says %v with %d bytes left", skipErr, rest.Len())
		case err != nil && skipErr == nil && rest.Len() == 0 &&
			!errors.Is(err, codec.ErrLimit) && !strings.Contains(err.Error(), "interned") && !strings.Contains(err.Error(), "not UTF-8"):
			t.Fatalf("refused one complete value: %v", err)
		case err != nil && !errors.Is(err, codec.ErrLimit) && !errors.Is(err, codec.ErrMalformed):
			t.Fatalf("untyped error %v", err)
		}
	})
}

// FuzzMsgpackDecode decodes into all kinds of targets.
func FuzzMsgpackDecode(f *testing.F) {
	addMsgpackSeeds(f)
	f.Fuzz(func(t *testing.T, src []byte) {
		targets := []any{
			new(any), new(map[string]any), new(map[any]any), new(map[string]int), new([]map[string]any), new([]any), new([][]string),
			new(string), new([]byte), new([4]byte), new(int8), new(float32), new(time.Time), new(error), new(msgpack.RawMessage),
			new(chunk), new(*chunk), new(codec.Tensor), new([]codec.Tensor),
		}
		private := bytes.Clone(src)
		for _, target := range targets {
			err := codec.MsgpackSerializer{}.Decode(private, target)
			if !bytes.Equal(private, src) {
				t.Fatalf("decoding into %T wrote to the payload", target)
			}
			if err != nil {
				codectest.CheckError(t, fmt.Errorf("into %T: %w", target, err), nil)
			} else if _, isRaw := target.(*msgpack.RawMessage); isRaw && codec.ScanMsgpack(src) != nil {
				t.Fatal("accepted a payload that the scan refuses")
			}
		}
	})
}

func addMsgpackSeeds(f *testing.F) {
	value := map[string]any{
		"n": nil, "b": true, "i": -70000, "u": uint64(math.MaxUint64), "f": float32(1.5), "d": 2.5, "s": strings.Repeat("s", 40),
		"x": []byte{1, 2, 3}, "a": []any{1, "two", []any{}}, "m": map[string]any{"k": map[string]any{}}, "t": time.Unix(1, 2),
		"tensor": codec.Tensor{DType: codec.DTypeInt8, Shape: []int{2}, Data: []byte{1, 2}},
		"chunk":  chunk{Request: "r", Tokens: []int32{1, 300}, Labels: map[string]string{"k": "v"}},
	}
	payload, err := codec.MsgpackSerializer{}.Append(nil, value)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(payload)
	f.Add(nested(64, "\x81\xa0"))
	f.Add(nested(65, "\x91"))
	for _, s := range []string{
		"", "\xc1", "\xdd\xff\xff\xff\xff", "\xdf\x80\x00\x00\x00", "\xc6\xff\xff\xff\xff", "\xd4\x80\x00", "\xc7\x00\x05",
		"\x92\xd6\xff\xdf\xff\xff\xff\x70", "\x92\xd7\xff\x81\xa1k\xdd\xff\xff\xff\xff\x70", "\x81\x90\xc0",
	} {
		f.Add([]byte(s))
	}
}
