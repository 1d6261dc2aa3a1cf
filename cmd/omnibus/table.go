package main

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/columns"
)

// A table writes rows of cells below a heading, with a blank line before all
// tables but the first.
type table struct {
	heading []string
	rows    [][]string
}

func (t *table) add(cells ...any) {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c), "") // names come from other programs
	}
	t.rows = append(t.rows, row)
}

// write writes the table, unless it has no rows.
func (t *table) write(to io.Writer) error {
	if len(t.rows) == 0 {
		return nil
	}
	rows := append([][]string{t.heading}, t.rows...)
	widths := make(map[int]int) // of the columns
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], columns.Width(cell))
		}
	}
	for _, row := range rows {
		for i, cell := range row {
			row[i] = columns.Pad(cell, widths[i])
		}
		if _, err := fmt.Fprintln(to, strings.TrimRight(strings.Join(row, "  "), " ")); err != nil {
			return err
		}
	}
	return nil
}

// sizeText writes bytes with three digits and a binary unit.
func sizeText(bytes int64) string {
	const step = 1024
	v, unit := float64(bytes), 0
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	for v >= step && unit < len(units)-1 {
		v /= step
		unit++
	}
	if unit == 0 || v == float64(int64(v)) {
		return fmt.Sprintf("%d %s", int64(v), units[unit])
	}
	return fmt.Sprintf("%.1f %s", v, units[unit])
}

// timeText rounds a time to three digits.
func timeText(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Microsecond:
		return d.String()
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(10 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
