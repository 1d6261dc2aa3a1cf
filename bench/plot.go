package bench

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"math"
)

// Measures of the plot, in pixels.
const (
	plotLeft  = 280 // where the axis begins
	plotWidth = 460 // of the axis
	plotRight = 60  // beside the axis, for the last figure
	plotTop   = 70  // where the first bar begins
	barHeight = 11
	barPitch  = 14 // from one bar to the next
	rowGap    = 8  // above the first bar of a row
)

// A bar is one factor of the plot.
type bar struct {
	row    string // empty: the row of the bar above
	peer   string
	factor float64
}

// bars are the factors of the table, in its order. A cell without a factor has no bar.
func (r Table) bars() (all []bar) {
	for _, row := range r.Rows {
		name := row.Name
		for _, c := range row.Cells {
			if c.Column == ours || c.Factor <= 0 {
				continue
			}
			all = append(all, bar{name, c.Column, c.Factor})
			name = ""
		}
	}
	return all
}

// An axis is logarithmic. Its ends are powers of ten.
type axis struct{ least, most int } // exponents

// axisOf returns the shortest axis that contains all factors, and a power of ten on each side of 1.
func axisOf(all []bar) axis {
	a := axis{-1, 1}
	for _, b := range all {
		exponent := math.Log10(b.factor)
		a.least = min(a.least, int(math.Floor(exponent)))
		a.most = max(a.most, int(math.Ceil(exponent)))
	}
	return a
}

// at is the position of a factor, in pixels from the left.
func (a axis) at(factor float64) float64 {
	return plotLeft + plotWidth*(math.Log10(factor)-float64(a.least))/float64(a.most-a.least)
}

// WriteSVG draws the factors of the table as bars on a logarithmic axis. A bar begins at 1: to the
// left omnibus takes less than the other program, to the right more. The length of a bar is in
// proportion to the logarithm of its factor.
func (r Table) WriteSVG(out io.Writer) error {
	all := r.bars()
	bottom := plotTop + len(all)*barPitch
	for _, b := range all {
		if b.row != "" {
			bottom += rowGap
		}
	}
	var svg bytes.Buffer
	const width = plotLeft + plotWidth + plotRight
	fmt.Fprintf(&svg, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" font-family="sans-serif" font-size="11">`+"\n", width, bottom+30)
	fmt.Fprintln(&svg, `<rect width="100%" height="100%" fill="white"/>`)
	beside := ""
	if r.Busy > 0 {
		beside = fmt.Sprintf(", beside %d computing processes", r.Busy)
	}
	text(&svg, 10, 20, `font-size="14"`, "omnibus / other program: left of 1 omnibus takes less")
	text(&svg, 10, 38, `fill="#555"`, fmt.Sprintf("commit %s, %d rounds%s; %s, %d cores", r.Commit, r.Rounds, beside, r.Machine.CPU, r.Machine.Cores))
	a := axisOf(all)
	a.write(&svg, bottom)
	y := plotTop
	for _, b := range all {
		if b.row != "" {
			y += rowGap
			text(&svg, 10, y+barHeight-2, `font-weight="bold"`, b.row)
		}
		b.write(&svg, a, y)
		y += barPitch
	}
	fmt.Fprintln(&svg, "</svg>")
	_, err := out.Write(svg.Bytes())
	return err
}

// write draws the lines of the axis: one at 2 and 5 times each power of ten, and a strong one at 1.
func (a axis) write(svg io.Writer, bottom int) {
	for exponent := a.least; exponent <= a.most; exponent++ {
		for _, times := range []float64{1, 2, 5} {
			if exponent == a.most && times > 1 {
				break
			}
			factor, colour := times*math.Pow10(exponent), "#ddd"
			if factor == 1 {
				colour = "black"
			}
			x := a.at(factor)
			fmt.Fprintf(svg, `<line x1="%.1f" x2="%.1f" y1="%d" y2="%d" stroke="%s"/>`+"\n", x, x, plotTop, bottom+4, colour)
			for _, y := range []int{plotTop - 5, bottom + 18} {
				text(svg, x, y, `text-anchor="middle" fill="#555"`, fmt.Sprintf("%.4g", factor))
			}
		}
	}
}

// write draws the bar with the other program's name before the axis, and the factor at the bar's end.
func (b bar) write(svg io.Writer, a axis, y int) {
	one, end := a.at(1), a.at(b.factor)
	colour, label, anchor := "#2a7f9e", end-4, "end"
	if b.factor > 1 {
		colour, label, anchor = "#d9822b", end+4, "start"
	}
	fmt.Fprintf(svg, `<rect class="bar" x="%.1f" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", min(one, end), y, math.Abs(end-one), barHeight, colour)
	text(svg, plotLeft-8, y+barHeight-2, `text-anchor="end"`, b.peer)
	text(svg, label, y+barHeight-2, `text-anchor="`+anchor+`"`, significant(b.factor))
}

func text(svg io.Writer, x float64, y int, attributes, words string) {
	fmt.Fprintf(svg, `<text x="%.1f" y="%d" %s>%s</text>`+"\n", x, y, attributes, html.EscapeString(words))
}
