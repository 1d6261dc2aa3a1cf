package codec

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
)

const (
	leastDB     = 20.0
	largestSize = 0.25 // of the PCM
)

// The aim of the codec: at the default ratio, 20 dB in a quarter of the bytes. The
// hardest signal is white noise, at any level.
func TestQualityAndSize(t *testing.T) {
	for _, c := range []struct {
		name        string
		clip        clip
		leastDB     float64
		largestSize float64
	}{
		{"speech", speech(t), 22, 1.0 / 15},
		{"stereo", stereoSpeech(), 21, 1.0 / 10},
		{"noise at full scale", clip{22050, 1, whiteNoise(50_000, 8000)}, leastDB, largestSize},
		{"quiet noise", clip{22050, 1, whiteNoise(50_000, 30)}, leastDB, largestSize},
		{"hardly audible noise", clip{22050, 1, whiteNoise(50_000, 1)}, leastDB, largestSize},
		{"noise at 8 kHz", clip{8000, 1, whiteNoise(50_000, 1000)}, leastDB, largestSize},
		{"stereo noise at 48 kHz", clip{48000, 2, whiteNoise(200_000, 1000)}, leastDB, largestSize},
	} {
		t.Run(c.name, func(t *testing.T) {
			pcm, codedBytes := roundTrip(t, c.clip, mdct.HopFor(c.clip.rate), DefaultRatio)
			if len(pcm) != len(c.clip.pcm) {
				t.Fatalf("%d samples came back of %d", len(pcm), len(c.clip.pcm))
			}
			size := float64(codedBytes) / float64(pcmBytes*len(pcm))
			snr := SNR(c.clip.pcm, pcm)
			t.Logf("%d bytes of PCM in %d: %.4f (1/%.1f), signal to noise %.2f dB",
				pcmBytes*len(pcm), codedBytes, size, 1/size, snr)
			if snr < c.leastDB {
				t.Errorf("signal to noise is %.2f dB, must be %.2f or more", snr, c.leastDB)
			}
			if size > c.largestSize {
				t.Errorf("coded in %.4f of the bytes, must be %.4f or less", size, c.largestSize)
			}
		})
	}
}

// A recording that is softer by any factor keeps its quality.
func TestQualityDoesNotDependOnLevel(t *testing.T) {
	loud := speech(t)
	for _, divisor := range []int16{4, 30, 200} {
		soft := loud
		soft.pcm = slices.Clone(loud.pcm)
		for i := range soft.pcm {
			soft.pcm[i] /= divisor
		}
		pcm, codedBytes := roundTrip(t, soft, 512, DefaultRatio)
		size, snr := float64(codedBytes)/float64(pcmBytes*len(pcm)), SNR(soft.pcm, pcm)
		t.Logf("speech / %d: 1/%.1f, %.2f dB", divisor, 1/size, snr)
		if snr < leastDB || size > largestSize {
			t.Errorf("speech / %d: %.2f dB in %.4f of the bytes", divisor, snr, size)
		}
	}
}

func lengths(hop int) []int {
	return []int{0, 1, hop - 1, hop, hop + 1, 2 * hop, 24*hop - 1, 24 * hop, 24*hop + 1, 25 * hop, 25*hop + 3, 60*hop + 7}
}

// Without quantisation all samples are the same.
func TestLosslessIsExact(t *testing.T) {
	for _, hop := range []int{mdct.MinHop, 512, mdct.MaxHop} {
		for _, n := range lengths(min(hop, 512)) {
			for _, c := range []struct {
				name string
				clip clip
			}{
				{"silence", clip{22050, 1, make([]int16, n)}},
				{"square", clip{22050, 1, square(n, 1)}},
				{"stereo square", clip{44100, 2, square(n, 2)}},
				{"noise over full scale", clip{48000, 2, whiteNoise(2*n, 40000)}},
			} {
				if pcm, _ := roundTrip(t, c.clip, hop, 0); !slices.Equal(pcm, c.clip.pcm) {
					t.Errorf("%s of %d samples at hop %d came back changed", c.name, n, hop)
				}
			}
		}
	}
	for name, c := range map[string]clip{"speech": speech(t), "stereo": stereoSpeech()} {
		pcm, codedBytes := roundTrip(t, c, 512, 0)
		if !slices.Equal(pcm, c.pcm) {
			t.Errorf("%s came back changed", name)
		}
		t.Logf("%s: lossless in %.3f of the bytes", name, float64(codedBytes)/float64(pcmBytes*len(pcm)))
	}
}

// Quantisation keeps the length, and silence.
func TestLengthsWithQuantisation(t *testing.T) {
	const hop = 64
	for _, n := range lengths(hop) {
		for _, channels := range []int{1, 2} {
			loud := clip{8000, channels, square(n, channels)}
			if pcm, _ := roundTrip(t, loud, hop, DefaultRatio); len(pcm) != len(loud.pcm) {
				t.Errorf("%d samples came back of %d", len(pcm), len(loud.pcm))
			} else if snr := SNR(loud.pcm, pcm); snr < leastDB {
				t.Errorf("square of %d samples in %d channels: %.2f dB", n, channels, snr)
			}
			silence := clip{8000, channels, make([]int16, n*channels)}
			if pcm, _ := roundTrip(t, silence, hop, DefaultRatio); !slices.Equal(pcm, silence.pcm) {
				t.Errorf("silence of %d samples in %d channels came back changed", n, channels)
			}
		}
	}
}

// Any PCM, read in any pieces, is exact without quantisation, and its chunks are
// the same as if read at once.
func TestLosslessProperty(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		hop := rapid.SampledFrom([]int{16, 32, 64}).Draw(rt, "hop")
		channels := rapid.IntRange(1, MaxChannels).Draw(rt, "channels")
		// Runs of equal extremes are what rounding would hurt most.
		sample := rapid.OneOf(rapid.SampledFrom([]int16{-32768, 32767, 0}), rapid.Int16())
		n := rapid.IntRange(0, 3*hop).Draw(rt, "samples")
		pcm := rapid.SliceOfN(sample, n*channels, n*channels).Draw(rt, "pcm")
		c := clip{rapid.IntRange(1, MaxRate).Draw(rt, "rate"), channels, pcm}
		piece := rapid.IntRange(1, 2*hop).Draw(rt, "piece")

		chunks := analyse(t, c, hop, piece)
		for i, want := range analyse(t, c, hop, len(pcm)) {
			if !slices.Equal(chunks[i].coeffs, want.coeffs) || chunks[i].shape != want.shape {
				rt.Fatalf("chunk %d depends on the pieces it was read in", i)
			}
			chunks[i] = decode(t, encode(t, chunks[i], 0))
		}
		if got := synthesise(t, chunks); !slices.Equal(got, pcm) {
			rt.Fatalf("came back changed: %v, was %v", got, pcm)
		}
	})
}

// A lost chunk, replaced by zeros, changes its own samples and a hop on either
// side, and nothing else.
func TestLostChunkSpoilsNoOther(t *testing.T) {
	const hop = 512
	c := speech(t)
	chunks := analyse(t, c, hop, 1000)
	for i, c := range chunks {
		chunks[i] = decode(t, encode(t, c, StepFor(c.coeffs, DefaultRatio)))
	}
	whole := synthesise(t, chunks)
	const lost = 5
	clear(chunks[lost].coeffs)
	got := synthesise(t, chunks)

	from, to := (lost*ChunkFrames-1)*hop, ((lost+1)*ChunkFrames)*hop
	if !slices.Equal(got[:from], whole[:from]) || !slices.Equal(got[to:], whole[to:]) {
		t.Error("samples far from the lost chunk changed")
	}
	if slices.Equal(got[from:to], whole[from:to]) {
		t.Error("the loss changed nothing")
	}
}
