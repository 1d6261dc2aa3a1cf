package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"text/tabwriter"
)

// A Report is the outcome of RunGPU.
type Report struct {
	Machine Machine
	Quick   bool
	Results []Result
	Skipped []Skip
}

// A Result is one figure. Value is the median of all rounds, in Unit. With a baseline, both are the
// best of the rounds. A field that does not apply is nil.
type Result struct {
	Name     string   `json:"name"`
	Value    float64  `json:"value"`
	Unit     string   `json:"unit"`
	Baseline *float64 `json:"baseline"`
	// Ratio is Value by Baseline; half of the rounds' ratios lie between RatioLow and RatioHigh.
	Ratio     *float64 `json:"ratio"`
	RatioLow  *float64 `json:"ratio_low"`
	RatioHigh *float64 `json:"ratio_high"`
	// Speed is 1/Ratio: how many times as fast as the baseline.
	Speed *float64 `json:"speed,omitempty"`
	// Target is an upper bound of the "value", or a lower one of the "speed", as TargetOf says.
	Target   *float64 `json:"target"`
	TargetOf string   `json:"target_of,omitempty"`
	Met      *bool    `json:"met"`
	Rounds   int      `json:"rounds"`
}

// summarise makes a result of the samples of one metric, at least one.
func summarise(name string, m metric, samples []sample) Result {
	var ours, baselines, ratios []float64
	for _, s := range samples {
		ours = append(ours, s.ours)
		if s.baseline != 0 {
			baselines = append(baselines, s.baseline)
			ratios = append(ratios, s.ours/s.baseline)
		}
	}
	middle := median
	if m.speed {
		middle = slices.Min[[]float64]
	}
	r := Result{Name: name, Value: middle(ours), Unit: m.unit, Rounds: len(samples)}
	if len(baselines) > 0 {
		r.Baseline = new(middle(baselines))
		r.Ratio = new(r.Value / *r.Baseline)
		r.RatioLow = new(quantile(ratios, 0.25))
		r.RatioHigh = new(quantile(ratios, 0.75))
		r.Speed = new(1 / *r.Ratio)
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
	case t.of == ofSpeed:
		value = 1 / *r.Ratio
	}
	r.Target, r.TargetOf = new(t.at), string(t.of)
	// The printed value is compared: three objects allocated in a million operations do
	// not miss a target of none.
	r.Met = new(round2(value) <= round2(t.at))
	if t.of == ofSpeed {
		r.Met = new(round2(value) >= round2(t.at))
	}
}

func round2(v float64) float64 { return math.Round(v*100) / 100 }

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

// WriteText writes the report as a table, under a line about the machine.
func (r Report) WriteText(out io.Writer) error {
	mode := ""
	if r.Quick {
		mode = ", quick"
	}
	if _, err := fmt.Fprintf(out, "%v%s\n\n", r.Machine, mode); err != nil {
		return err
	}
	if err := writeTable(out, r.Results); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		if _, err := fmt.Fprintf(out, "skipped %s: %s\n", s.Scenario, s.Reason); err != nil {
			return err
		}
	}
	return nil
}

func writeTable(out io.Writer, results []Result) error {
	if len(results) == 0 {
		return nil
	}
	// Errors of a tabwriter that is flushed at the end are those of the flush.
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\t    OURS\tBASELINE\tUNIT\tRATIO\tQUARTILES\tTARGET\tMET\tROUNDS")
	for _, r := range results {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d\n", r.Name, number(&r.Value), number(r.Baseline), r.Unit,
			ratio(r), quartiles(r), bound(r), met(r.Met), r.Rounds)
	}
	return w.Flush()
}

// absent stands where a figure does not apply.
const absent = "-"

// number writes a value with three significant digits, flush right under its
// heading of eight letters.
func number(v *float64) string {
	if v == nil {
		return fmt.Sprintf("%8s", absent)
	}
	return fmt.Sprintf("%8s", digits(*v))
}

func digits(v float64) string {
	decimals := 0
	switch size := math.Abs(v); {
	case v == math.Trunc(v):
	case size < 10:
		decimals = 2
	case size < 100:
		decimals = 1
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

func limit(v float64) string { return strconv.FormatFloat(round2(v), 'f', -1, 64) }

// ratio writes a speed, followed by an x.
func ratio(r Result) string {
	if r.Speed == nil {
		return fmt.Sprintf("%5s", absent)
	}
	return fmt.Sprintf("%5.2fx", *r.Speed)
}

func quartiles(r Result) string {
	if r.RatioLow == nil || r.RatioHigh == nil {
		return absent
	}
	return fmt.Sprintf("%.2f–%.2fx", 1 / *r.RatioHigh, 1 / *r.RatioLow)
}

func bound(r Result) string {
	switch {
	case r.Target == nil:
		return absent
	case quantity(r.TargetOf) == ofSpeed:
		return fmt.Sprintf("≥ %sx", limit(*r.Target))
	default:
		return fmt.Sprintf("≤ %s %s", limit(*r.Target), r.Unit)
	}
}

func met(v *bool) string {
	switch {
	case v == nil:
		return absent
	case *v:
		return "yes"
	default:
		return "no"
	}
}
