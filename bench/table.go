package bench

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"unicode/utf8"
)

// A Table is the result of Run.
type Table struct {
	Machine Machine `json:"machine"`
	Commit  string  `json:"commit"`
	Rounds  int     `json:"rounds"`
	Busy    int     `json:"busy,omitempty"` // processes that computed during the measurement
	Rows    []Row   `json:"rows"`
	Skipped []Skip  `json:"skipped"`
}

// A Skip is a column of a row, or a scenario of RunGPU, that was not measured, with the reason.
type Skip struct {
	Scenario string `json:"scenario"`
	Reason   string `json:"reason"`
}

// A Row is one kind of work.
type Row struct {
	Name  string `json:"name"`
	Unit  string `json:"unit"`
	Cells []Cell `json:"cells"`
}

// A Cell is the figure of one column, in the unit of its row.
type Cell struct {
	Column string  `json:"column"`
	Median float64 `json:"median"`
	Least  float64 `json:"least"`
	// Factor is the figure of omnibus divided by this one, as the median of the factors of the
	// rounds. 0: there is none.
	Factor float64 `json:"factor"`
}

// cellOf summarises the rounds of a column, with its factor if the first column is omnibus.
func cellOf(column string, figures []float64, first *runner) Cell {
	cell := Cell{Column: column, Median: quantile(slices.Clone(figures), 0.5), Least: slices.Min(figures)}
	if first.column == ours {
		var factors []float64
		for i, f := range figures {
			if f > 0 { // an idle side may use nothing
				factors = append(factors, first.figures[i]/f)
			}
		}
		if len(factors) > 0 {
			cell.Factor = quantile(factors, 0.5)
		}
	}
	return cell
}

// commit names the commit of the current checkout, with a plus sign if files differ from it.
func commit(ctx context.Context) string {
	out, err := exec.CommandContext(ctx, "git", "describe", "--always", "--exclude=*", "--dirty=+").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// WriteText writes the report as a table in Markdown, under a line about the machine.
func (r Table) WriteText(out io.Writer) error {
	beside := ""
	if r.Busy > 0 {
		beside = fmt.Sprintf(" beside %d computing processes", r.Busy)
	}
	if _, err := fmt.Fprintf(out, "Commit %s, %v. Medians of %d rounds%s; in brackets omnibus / peer.\n\n", r.Commit, r.Machine, r.Rounds, beside); err != nil {
		return err
	}
	if err := r.writeRows(out); err != nil {
		return err
	}
	for _, s := range r.Skipped {
		if _, err := fmt.Fprintf(out, "\nskipped %s: %s\n", s.Scenario, s.Reason); err != nil {
			return err
		}
	}
	return nil
}

func (r Table) writeRows(out io.Writer) error {
	if len(r.Rows) == 0 {
		return nil
	}
	columns := r.columns()
	lines := [][]string{append([]string{"µs a message"}, columns...), make([]string, len(columns)+1)}
	for _, row := range r.Rows {
		line := []string{row.Name}
		if row.Unit != "µs" {
			line[0] += " (" + row.Unit + ")"
		}
		for _, column := range columns {
			line = append(line, row.cell(column))
		}
		lines = append(lines, line)
	}
	widths := make([]int, len(columns)+1)
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, line := range lines {
		var text strings.Builder
		for i, cell := range line {
			fill := " "
			if line[0] == "" { // below the heading
				fill = "-"
			}
			text.WriteString("|" + fill + cell + strings.Repeat(fill, widths[i]-utf8.RuneCountInString(cell)) + fill)
		}
		if _, err := fmt.Fprintln(out, text.String()+"|"); err != nil {
			return err
		}
	}
	return nil
}

// columns are the columns that at least one row has, in the order of all.
func (r Table) columns() []string {
	all := []string{ours, socket, socketRelayed, grpcDirect, grpcRelayed, natsServer, zeroMQ, pythonQueue, segmentFiles, vllmOmni, channelsInGo, protoactor}
	return slices.DeleteFunc(all, func(column string) bool {
		return !slices.ContainsFunc(r.Rows, func(row Row) bool { return row.cell(column) != "" })
	})
}

func (r Row) cell(column string) string {
	i := slices.IndexFunc(r.Cells, func(c Cell) bool { return c.Column == column })
	switch {
	case i < 0:
		return ""
	case column == ours || r.Cells[i].Factor == 0:
		return significant(r.Cells[i].Median)
	}
	return fmt.Sprintf("%s (%s)", significant(r.Cells[i].Median), significant(r.Cells[i].Factor))
}

// significant writes a figure with three significant digits, and at most four decimals.
func significant(v float64) string {
	decimals := 2
	for size := v; size >= 10 && decimals > 0; size /= 10 {
		decimals--
	}
	for size := v; size > 0 && size < 1 && decimals < 4; size *= 10 {
		decimals++
	}
	return fmt.Sprintf("%.*f", decimals, v)
}
