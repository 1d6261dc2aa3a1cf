package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

const wavHeaderBytes = 44

// wavBytes is a WAV with its sizes filled in.
func wavBytes(f wav.Format, pcm []int16) []byte {
	var b bytes.Buffer
	w, err := wav.NewWriter(&b, f)
	if err == nil {
		err = w.WriteSamples(pcm)
	}
	if err != nil {
		panic(err)
	}
	whole := b.Bytes()
	binary.LittleEndian.PutUint32(whole[4:], uint32(len(whole)-8))
	binary.LittleEndian.PutUint32(whole[40:], uint32(len(whole)-wavHeaderBytes))
	return whole
}

// openWAVOf is a WAV with its sizes left open, as a pipe gets it.
func openWAVOf(whole []byte) []byte {
	open := bytes.Clone(whole)
	for _, at := range []int{4, 40} {
		copy(open[at:], "\xff\xff\xff\xff")
	}
	return open
}

func readWAV(t *testing.T, b []byte) (wav.Format, []int16) {
	t.Helper()
	r, err := wav.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	var pcm []int16
	buf := make([]int16, 1<<12)
	for {
		n, err := r.ReadSamples(buf)
		pcm = append(pcm, buf[:n]...)
		if errors.Is(err, io.EOF) {
			return r.Format(), pcm
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// readWholeWAV reads a file whose header must give the size that it has.
func readWholeWAV(t *testing.T, name string) (wav.Format, []int16) {
	t.Helper()
	b := readFile(t, name)
	f, pcm := readWAV(t, b)
	riff, data := binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b[40:])
	if int(riff) != len(b)-8 || int(data) != len(b)-wavHeaderBytes || int(data) != 2*len(pcm) {
		t.Errorf("%s has %d bytes and %d samples, its header says %d and %d bytes", name, len(b), len(pcm), riff, data)
	}
	return f, pcm
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t *testing.T, name string, b []byte) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// sweep is n samples of a loud tone that rises, with the extremes in it.
func sweep(n int) []int16 {
	pcm := make([]int16, n)
	for i := range pcm {
		x := float64(i)
		pcm[i] = int16(30000 * math.Sin(x*x/40000))
	}
	for i := 0; i < n; i += 97 {
		pcm[i] = math.MinInt16
	}
	for i := 50; i < n; i += 89 {
		pcm[i] = math.MaxInt16
	}
	return pcm
}
