package codec

import (
	"errors"
	"io"
	"math"
	"strings"
	"testing"
)

func TestAnalysisErrors(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name string
		src  Source
		room int
		err  error
	}{
		{"the source fails", &sliceSource{pcm: make([]int16, 100), piece: 10, err: broken}, 1 << 20, broken},
		{"the source delivers nothing", stuckSource{0}, 1 << 20, io.ErrNoProgress},
		{"too little room", &sliceSource{}, ChunkFrames*2*64 - 1, ErrShort},
	} {
		a, err := NewAnalysis(c.src, 8000, 2, 64)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := a.Next(make([]float32, c.room)); !errors.Is(err, c.err) {
				t.Errorf("%s: %v, want %v", c.name, err, c.err)
			}
		}
	}
	a, _ := NewAnalysis(stuckSource{3}, 8000, 2, 64)
	if _, err := a.Next(make([]float32, 1<<20)); err == nil || !strings.Contains(err.Error(), "3 values") {
		t.Errorf("half a stereo sample: %v", err)
	}
	if _, err := NewAnalysis(nil, 8000, 3, 64); !errors.Is(err, ErrShape) {
		t.Errorf("three channels: %v, want ErrShape", err)
	}
}

// stuckSource delivers that many values each time.
type stuckSource struct{ n int }

func (s stuckSource) ReadSamples([]int16) (int, error) { return s.n, nil }

func TestSynthesisErrors(t *testing.T) {
	const hop = 32
	good := Shape{Rate: 1, Channels: 1, Frames: 3, Hop: hop, Samples: 2 * hop}
	for _, c := range []struct {
		name  string
		shape Shape
		room  int
		err   error
	}{
		{"invalid", Shape{}, 1000, ErrShape},
		{"other channels", Shape{Rate: 1, Channels: 2, Frames: 3, Hop: hop}, 1000, ErrShape},
		{"other hop", Shape{Rate: 1, Channels: 1, Frames: 3, Hop: 64}, 1000, ErrShape},
		{"other length", Shape{Rate: 1, Channels: 1, Frames: 2, Hop: hop}, 1000, ErrShape},
		{"more than the first chunk completes", Shape{Rate: 1, Channels: 1, Frames: 3, Hop: hop, Samples: 2*hop + 1}, 1000, ErrShape},
		{"too little room", good, 2*hop - 1, ErrShort},
	} {
		s, err := NewSynthesis(1, hop)
		if err != nil {
			t.Fatal(err)
		}
		coeffs := make([]float32, good.Coefficients())
		if _, err := s.Next(make([]int16, c.room), coeffs, c.shape); !errors.Is(err, c.err) {
			t.Errorf("%s: %v, want %v", c.name, err, c.err)
		}
		if n, err := s.Next(make([]int16, 1000), coeffs, good); n != good.Samples || err != nil {
			t.Errorf("%s: afterwards %d samples, %v", c.name, n, err)
		}
	}
	if _, err := NewSynthesis(1, 33); !errors.Is(err, ErrShape) {
		t.Errorf("hop 33: %v, want ErrShape", err)
	}
}

func TestToPCM(t *testing.T) {
	for v, want := range map[float64]int16{
		0.4: 0, -0.6: -1, 32767.4: 32767, 32768: 32767, 1e300: 32767, -32768.4: -32768, -1e300: -32768,
		math.Inf(1): 32767, math.Inf(-1): -32768,
	} {
		if got := toPCM(v); got != want {
			t.Errorf("toPCM(%v) = %d, want %d", v, got, want)
		}
	}
	if got := toPCM(math.NaN()); got != math.MinInt16 {
		t.Errorf("toPCM(NaN) = %d", got)
	}
}
