package bench

import (
	"math"
	"slices"
)

// A Report is the outcome of a run.
type Report struct {
	Machine Machine  `json:"machine"`
	Quick   bool     `json:"quick"`
	Busy    int      `json:"busy,omitempty"` // processes that computed beside it
	Results []Result `json:"results"`
	Skipped []Skip   `json:"skipped"`
}

// A Result is one figure. Values and baselines are medians of all rounds, or
// the best of them where another process takes part, or their mean where others
// compute, in Unit. What does not apply is nil.
type Result struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	// Ratio is the median of the rounds' ratios of value to baseline, or the
	// ratio of the best, or of the means; half of the rounds' lie between RatioLow and RatioHigh.
	Ratio     *float64 `json:"ratio"`
	RatioLow  *float64 `json:"ratio_low"`
	RatioHigh *float64 `json:"ratio_high"`
	// Speed is 1/Ratio: how many times as fast as the baseline. Figures that
	// are compared by it alone have it.
	Speed *float64 `json:"speed,omitempty"`
	// Target is an upper bound of what TargetOf says, "value" or "ratio", or a
	// lower one of the "speed".
	Target   *float64 `json:"target"`
	TargetOf string   `json:"target_of,omitempty"`
	Met      *bool    `json:"met"`
	Rounds   int      `json:"rounds"`
}

// A Skip is a scenario that was not measured, and why.
type Skip struct {
	Scenario string `json:"scenario"`
	Reason   string `json:"reason"`
}

// summarise makes a result of the samples of one metric, at least one. Others computed
// beside it if busy.
func summarise(name string, m metric, samples []sample, busy bool) Result {
	var ours, baselines, ratios []float64
	for _, s := range samples {
		ours = append(ours, s.ours)
		if s.baseline != 0 {
			baselines = append(baselines, s.baseline)
			ratios = append(ratios, s.ours/s.baseline)
		}
	}
	middle := median
	switch {
	case busy:
		middle = mean
	case m.best:
		middle = slices.Min[[]float64]
	}
	r := Result{Name: name, Value: middle(ours), Unit: m.unit, Rounds: len(samples)}
	if len(baselines) > 0 {
		r.Baseline = new(middle(baselines))
		r.Ratio = new(median(ratios))
		if m.best || busy {
			r.Ratio = new(r.Value / *r.Baseline)
		}
		r.RatioLow = new(quantile(ratios, 0.25))
		r.RatioHigh = new(quantile(ratios, 0.75))
		if m.speed {
			r.Speed = new(1 / *r.Ratio)
		}
	}
	r.judge(m.target)
	return r
}

// judge compares the result with its target.
func (r *Result) judge(t target) {
	value := r.Value
	switch {
	case t.of == ofNothing:
		return
	case t.of != ofValue && r.Ratio == nil:
		return
	case t.of == ofRatio:
		value = *r.Ratio
	case t.of == ofSpeed:
		value = 1 / *r.Ratio
	}
	r.Target, r.TargetOf = new(t.at), string(t.of)
	// What is printed is what counts: a runtime that allocates three objects in
	// a million operations does not break a promise of none.
	r.Met = new(round2(value) <= round2(t.at))
	if t.of == ofSpeed {
		r.Met = new(round2(value) >= round2(t.at))
	}
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

func mean(values []float64) float64 {
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}

func median(values []float64) float64 { return quantile(values, 0.5) }

// quantile returns the value below which the fraction q of the values lies,
// interpolated between the two nearest. It is NaN for no values.
func quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	sorted := slices.Sorted(slices.Values(values))
	at := q * float64(len(sorted)-1)
	below := int(at)
	above := min(below+1, len(sorted)-1)
	return sorted[below] + (at-float64(below))*(sorted[above]-sorted[below])
}
