package bench

import (
	"fmt"
	"io"
	"math"
	"strconv"
	"text/tabwriter"
)

// WriteText writes the report as a table, under a line about the machine.
func (r Report) WriteText(out io.Writer) error {
	mode := ""
	if r.Quick {
		mode = ", quick"
	}
	if r.Busy > 0 {
		mode += fmt.Sprintf(", means beside %d that compute", r.Busy)
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

// number writes a value with three digits that count, flush right under its
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

// ratio writes a ratio of costs, or of speeds with an x behind it.
func ratio(r Result) string {
	switch {
	case r.Ratio == nil:
		return fmt.Sprintf("%5s", absent)
	case r.Speed != nil:
		return fmt.Sprintf("%5.2fx", *r.Speed)
	default:
		return fmt.Sprintf("%5.2f", *r.Ratio)
	}
}

func quartiles(r Result) string {
	switch {
	case r.RatioLow == nil || r.RatioHigh == nil:
		return absent
	case r.Speed != nil:
		return fmt.Sprintf("%.2f–%.2fx", 1 / *r.RatioHigh, 1 / *r.RatioLow)
	default:
		return fmt.Sprintf("%.2f–%.2f", *r.RatioLow, *r.RatioHigh)
	}
}

func bound(r Result) string {
	switch {
	case r.Target == nil:
		return absent
	case quantity(r.TargetOf) == ofRatio:
		return fmt.Sprintf("ratio ≤ %s", limit(*r.Target))
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
