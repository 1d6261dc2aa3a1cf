package bench

import (
	"errors"
	"slices"
	"strings"
	"testing"
)

// Benchmark runs every scenario. An iteration is one round of both sides; the
// figures are medians of the rounds, as in a report. Choose some by the beginning
// of their names: -bench=/mailbox.
func Benchmark(b *testing.B) {
	for _, s := range slices.Concat(scenarios(), ipcScenarios(), connectorScenarios()) {
		b.Run(s.name, func(b *testing.B) { benchmark(b, s) })
	}
}

func benchmark(b *testing.B, s scenario) {
	opts := Options{Quick: true, Peer: testPeer}.withDefaults()
	t, err := s.open(b.Context(), opts)
	if errors.Is(err, errors.ErrUnsupported) {
		b.Skip(err)
	}
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := t.close(b.Context()); err != nil {
			b.Error(err)
		}
	}()
	if s.rounds == 0 {
		if _, err := t.round(b.Context(), false); err != nil {
			b.Fatal(err)
		}
	}
	var rounds [][]sample
	for b.Loop() {
		round, err := t.round(b.Context(), len(rounds)%2 == 1)
		if errors.Is(err, errors.ErrUnsupported) {
			b.Skip(err)
		}
		if err != nil {
			b.Fatal(err)
		}
		rounds = append(rounds, round)
	}
	b.ReportMetric(0, "ns/op") // a round means nothing
	for i, r := range s.results(rounds, Options{}) {
		prefix := ""
		if name := s.metrics[i].name; !strings.HasPrefix(r.Unit, name) {
			prefix = name + "-"
		}
		b.ReportMetric(r.Value, prefix+strings.ReplaceAll(r.Unit, " ", "-"))
		if r.Ratio != nil {
			b.ReportMetric(*r.Ratio, prefix+"ratio")
		}
	}
}
