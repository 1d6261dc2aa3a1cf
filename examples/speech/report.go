package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"text/tabwriter"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// figures are the traffic and the measurements of a run.
type figures struct {
	Rate       int        `json:"rate_hz"`
	Channels   int        `json:"channels"`
	Samples    int        `json:"samples"` // of all channels
	PCMBytes   int64      `json:"pcm_bytes"`
	CodedBytes int64      `json:"coded_bytes"`
	SNR        *float64   `json:"snr_db"` // null: every sample is the same
	Seconds    float64    `json:"seconds"`
	Edges      []edgeLine `json:"edges"`
}

type edgeLine struct {
	Edge     string  `json:"edge"`
	Messages int64   `json:"messages"`
	Bytes    int64   `json:"bytes"`
	P50      float64 `json:"p50_ms"`
	P99      float64 `json:"p99_ms"`
	Copies   int64   `json:"copies"`
}

func (f *figures) setSNR(db float64) {
	if !math.IsInf(db, 1) {
		f.SNR = &db
	}
}

func (f *figures) take(s bus.Stats) {
	f.PCMBytes = int64(f.Samples) * 2
	for _, e := range s.Edges {
		if e.From == "" {
			continue // the edge of the inputs
		}
		to := e.To
		if to == "" {
			to = "output"
		}
		if e.From == "talker" {
			f.CodedBytes = e.Bytes
		}
		f.Edges = append(f.Edges, edgeLine{
			Edge: e.From + " -> " + to, Messages: e.Deliveries, Bytes: e.Bytes, Copies: e.Copies,
			P50: milliseconds(e.P50), P99: milliseconds(e.P99),
		})
	}
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func (f *figures) write(w io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		enc.SetEscapeHTML(false)
		return enc.Encode(f)
	}
	tw := tabwriter.NewWriter(w, 0, 0, 3, ' ', tabwriter.AlignRight)
	fmt.Fprintln(tw, "edge\tmessages\tbytes\tp50 ms\tp99 ms\tcopies\t")
	for _, e := range f.Edges {
		fmt.Fprintf(tw, "%s\t%d\t%d\t%.3f\t%.3f\t%d\t\n", e.Edge, e.Messages, e.Bytes, e.P50, e.P99, e.Copies)
	}
	if err := tw.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "\n%.2f s of audio in %.2f s; coded to %d of %d bytes (%s); signal to noise: %s\n",
		f.duration(), f.Seconds, f.CodedBytes, f.PCMBytes, f.share(), f.quality())
	return err
}

func (f *figures) duration() float64 {
	return float64(f.Samples) / float64(f.Rate*f.Channels)
}

func (f *figures) share() string {
	if f.PCMBytes == 0 {
		return "no samples"
	}
	return fmt.Sprintf("%.1f %%", 100*float64(f.CodedBytes)/float64(f.PCMBytes))
}

func (f *figures) quality() string {
	if f.SNR == nil {
		return "the samples are the same"
	}
	return fmt.Sprintf("%.2f dB", *f.SNR)
}

// progress prints the progress of a run: on one line of a terminal, otherwise on lines
// whose intervals grow with the time.
type progress struct {
	w        io.Writer
	terminal bool
	perSec   float64 // samples
	next     float64 // seconds of audio at the next line
}

func newProgress(w io.Writer, f wav.Format) *progress {
	p := &progress{w: w, perSec: float64(f.Rate * f.Channels)}
	if file, ok := w.(*os.File); ok {
		info, err := file.Stat()
		p.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return p
}

func (p *progress) show(samples int) {
	at := float64(samples) / p.perSec
	switch {
	case p.terminal:
		fmt.Fprintf(p.w, "\rthinker -> talker -> vocoder: %.1f s of audio", at)
	case at >= p.next:
		fmt.Fprintf(p.w, "thinker -> talker -> vocoder: %.1f s of audio\n", at)
		p.next = max(2*at, at+1)
	}
}

func (p *progress) done() {
	if p.terminal {
		fmt.Fprintln(p.w)
	}
}
