package codec

import (
	"fmt"
	"math"
)

// SNR returns the ratio of signal to noise in dB of samples got for samples ref,
// over all of them; see SNRMeter.
func SNR(ref, got []int16) float64 {
	var m SNRMeter
	m.Add(ref, got)
	return m.DB()
}

// An SNRMeter measures the ratio of signal to noise of a stream piece by piece.
// The zero value is ready for use.
type SNRMeter struct {
	signal, noise float64 // energies
}

// Add adds the next samples of the reference and the decoded samples. The two must
// have the same length.
func (m *SNRMeter) Add(ref, got []int16) {
	if len(ref) != len(got) {
		panic(fmt.Sprintf("codec: %d samples compared with %d", len(got), len(ref)))
	}
	for i, r := range ref {
		d := float64(r) - float64(got[i])
		m.signal += float64(r) * float64(r)
		m.noise += d * d
	}
}

// DB returns 10 log10(signal/noise) of all samples so far. It is positive
// infinity as long as there is no difference, even for silence.
func (m *SNRMeter) DB() float64 {
	if m.noise == 0 {
		return math.Inf(1)
	}
	return 10 * math.Log10(m.signal/m.noise)
}
