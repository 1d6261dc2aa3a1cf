package codec

import (
	"io"
	"testing"
)

// The speeds are in bytes of PCM. realtime is how many streams of the sample's
// rate one core keeps up with.
func reportRealtime(b *testing.B, c clip) {
	seconds := float64(len(c.pcm)) / float64(c.rate*c.channels)
	b.SetBytes(int64(pcmBytes * len(c.pcm)))
	b.ReportMetric(seconds*float64(b.N)/b.Elapsed().Seconds(), "realtime")
}

func BenchmarkAnalysis(b *testing.B) {
	c := speech(b)
	var dst []float32
	for b.Loop() {
		a, err := NewAnalysis(&sliceSource{pcm: c.pcm, piece: 1024}, c.rate, c.channels, 512)
		if err != nil {
			b.Fatal(err)
		}
		if dst == nil {
			dst = make([]float32, a.FullShape().Coefficients())
		}
		for err == nil {
			_, err = a.Next(dst)
		}
		if err != io.EOF {
			b.Fatal(err)
		}
	}
	reportRealtime(b, c)
}

func BenchmarkEncode(b *testing.B) {
	c := speech(b)
	chunks := analyse(b, c, 512, 1024)
	dst := make([]byte, 0, MaxEncodedSize(chunks[0].shape))
	for b.Loop() {
		for _, c := range chunks {
			if _, err := EncodeChunk(dst, c.coeffs, c.shape, StepFor(c.coeffs, DefaultRatio)); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRealtime(b, c)
}

func BenchmarkDecode(b *testing.B) {
	c := speech(b)
	var coded [][]byte
	chunks := analyse(b, c, 512, 1024)
	for _, c := range chunks {
		coded = append(coded, encode(b, c, StepFor(c.coeffs, DefaultRatio)))
	}
	dst := make([]float32, chunks[0].shape.Coefficients())
	for b.Loop() {
		for _, src := range coded {
			if _, err := DecodeChunk(dst, src); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRealtime(b, c)
}

func BenchmarkSynthesis(b *testing.B) {
	c := speech(b)
	chunks := analyse(b, c, 512, 1024)
	pcm := make([]int16, ChunkFrames*512)
	for b.Loop() {
		s, err := NewSynthesis(c.channels, 512)
		if err != nil {
			b.Fatal(err)
		}
		for _, c := range chunks {
			if _, err := s.Next(pcm, c.coeffs, c.shape); err != nil {
				b.Fatal(err)
			}
		}
	}
	reportRealtime(b, c)
}
