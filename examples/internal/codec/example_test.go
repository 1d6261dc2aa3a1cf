package codec_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"

	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// Half a second of PCM goes through all stages, chunk by chunk. The three parts of
// the loop may as well be three processes.
func Example() {
	source := bytes.NewReader(tone())
	in, err := wav.NewReader(source)
	if err != nil {
		fmt.Println(err)
		return
	}
	format := in.Format()
	hop := mdct.HopFor(format.Rate)
	analysis, err := codec.NewAnalysis(in, format.Rate, format.Channels, hop)
	if err != nil {
		fmt.Println(err)
		return
	}
	synthesis, err := codec.NewSynthesis(format.Channels, hop)
	if err != nil {
		fmt.Println(err)
		return
	}
	full := analysis.FullShape()
	coeffs := make([]float32, full.Coefficients())
	coded := make([]byte, 0, codec.MaxEncodedSize(full))
	pcm := make([]int16, full.Samples*full.Channels)
	for {
		shape, err := analysis.Next(coeffs)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			fmt.Println(err)
			return
		}
		chunk := coeffs[:shape.Coefficients()]
		step := codec.StepFor(chunk, codec.DefaultRatio)
		if coded, err = codec.EncodeChunk(coded[:0], chunk, shape, step); err != nil {
			fmt.Println(err)
			return
		}

		if shape, err = codec.DecodeChunk(coeffs, coded); err != nil {
			fmt.Println(err)
			return
		}

		n, err := synthesis.Next(pcm, coeffs[:shape.Coefficients()], shape)
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Printf("%d frames, %d samples, smaller than a quarter: %v\n", shape.Frames, n, len(coded) < n*2/4)
	}
	// Output:
	// 25 frames, 6144 samples, smaller than a quarter: true
	// 8 frames, 1856 samples, smaller than a quarter: true
}

// tone returns half a second of a tone at 16 kHz as a WAV stream.
func tone() []byte {
	var out bytes.Buffer
	w, err := wav.NewWriter(&out, wav.Format{Rate: 16000, Channels: 1})
	if err != nil {
		panic(err)
	}
	samples := make([]int16, 8000)
	for i := range samples {
		samples[i] = int16(8000 * math.Sin(float64(i)/10))
	}
	if err := w.WriteSamples(samples); err != nil {
		panic(err)
	}
	return out.Bytes()
}
