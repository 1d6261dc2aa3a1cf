package codec_test

import (
	"testing"
	"time"

	"github.com/vmihailenco/msgpack/v5"

	"github.com/omnibus-runtime/omnibus/codec"
)

// reportRatio measures baseline as often as the benchmark ran and reports the time of the
// benchmark as a multiple of that of baseline.
func reportRatio(b *testing.B, name string, baseline func()) {
	b.Helper()
	took := b.Elapsed()
	start := time.Now()
	for range b.N {
		baseline()
	}
	b.ReportMetric(float64(took)/float64(time.Since(start)), name)
}

// benchChunk is one step of a thinker: a few tokens and their metadata.
func benchChunk() chunk {
	return chunk{
		Request: "request-0123456789", Sequence: 1234, Final: true,
		Tokens: []int32{1, 20, 300, 4000, 50000, 600000, 7, 8},
		Scores: []float64{0.1, 0.2, 0.3},
		Labels: map[string]string{"stage": "thinker", "model": "small"},
		Audio:  make([]byte, 1024),
		Sent:   time.Unix(1_700_000_000, 0),
	}
}

func BenchmarkMsgpackAppend(b *testing.B) {
	value := benchChunk()
	var buf []byte
	b.ReportAllocs()
	for b.Loop() {
		var err error
		if buf, err = (codec.MsgpackSerializer{}).Append(buf[:0], &value); err != nil {
			b.Fatal(err)
		}
	}
	b.SetBytes(int64(len(buf)))
	reportRatio(b, "x-of-Marshal", func() {
		if _, err := msgpack.Marshal(&value); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkMsgpackDecode(b *testing.B) {
	value := benchChunk()
	payload, err := codec.MsgpackSerializer{}.Append(nil, &value)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		var v chunk
		if err := (codec.MsgpackSerializer{}).Decode(payload, &v); err != nil {
			b.Fatal(err)
		}
	}
	reportRatio(b, "x-of-Unmarshal", func() {
		var v chunk
		if err := msgpack.Unmarshal(payload, &v); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkView(b *testing.B) {
	_, tensor := newTensor(b, codec.DTypeFloat32, 1024, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.View[float32](tensor); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkViewTensor(b *testing.B) {
	payload, _ := newTensor(b, codec.DTypeFloat32, 1024, 1024)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := codec.ViewTensor(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTensorEncodeInto(b *testing.B) {
	payload, tensor := newTensor(b, codec.DTypeFloat32, 1024, 1024)
	source := tensor.Clone()
	b.SetBytes(int64(len(payload)))
	b.ReportAllocs()
	for b.Loop() {
		if err := (codec.TensorSerializer{}).EncodeInto(payload, &source); err != nil {
			b.Fatal(err)
		}
	}
	reportRatio(b, "x-of-copy", func() { copy(tensor.Data, source.Data) })
}
