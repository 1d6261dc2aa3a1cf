package mdct

import (
	"math"
	"math/bits"
	"math/cmplx"
)

// dct4 computes the orthonormal DCT of type IV of n values, which is its own
// inverse:
//
//	X[k] = sqrt(2/n) * sum over j of v[j] * cos(pi/n * (j+1/2) * (k+1/2))
//
// It packs the n values into n/2 complex ones, rotates them, takes one FFT and
// rotates again.
type dct4 struct {
	n      int
	rotate []complex128 // used before and after the FFT; carries half the scale each time
	fft    *fft
	z      []complex128
}

func newDCT4(n int) *dct4 {
	d := &dct4{
		n:      n,
		rotate: make([]complex128, n/2),
		fft:    newFFT(n / 2),
		z:      make([]complex128, n/2),
	}
	scale := math.Sqrt(math.Sqrt(2 / float64(n)))
	for j := range d.rotate {
		d.rotate[j] = cmplx.Rect(scale, -math.Pi*float64(8*j+1)/float64(8*n))
	}
	return d
}

// transform replaces the n values of v by their DCT-IV.
func (d *dct4) transform(v []float64) {
	v = v[:d.n]
	for j, r := range d.rotate {
		d.z[d.fft.reversed[j]] = complex(v[2*j], v[d.n-1-2*j]) * r
	}
	d.fft.transform(d.z)
	for k, r := range d.rotate {
		y := d.z[k] * r
		v[2*k], v[d.n-1-2*k] = real(y), -imag(y)
	}
}

// fft is the radix-2 decimation-in-time FFT of a power-of-two number of points.
type fft struct {
	reversed []int        // where the input of each index goes: its bits in reverse
	roots    []complex128 // exp(-2 pi i k / n) for k < n/2
}

func newFFT(n int) *fft {
	f := &fft{reversed: make([]int, n), roots: make([]complex128, n/2)}
	width := bits.Len(uint(n)) - 1
	for i := range f.reversed {
		f.reversed[i] = int(bits.Reverse64(uint64(i)) >> (64 - width))
	}
	for k := range f.roots {
		f.roots[k] = cmplx.Rect(1, -2*math.Pi*float64(k)/float64(n))
	}
	return f
}

// transform takes z in the order that reversed gives and leaves its spectrum in
// natural order.
func (f *fft) transform(z []complex128) {
	for half := 1; half < len(z); half *= 2 {
		stride := len(f.roots) / half
		for start := 0; start < len(z); start += 2 * half {
			lo := z[start : start+half]
			hi := z[start+half:][:half]
			for k := range lo {
				t := f.roots[k*stride] * hi[k]
				lo[k], hi[k] = lo[k]+t, lo[k]-t
			}
		}
	}
}
