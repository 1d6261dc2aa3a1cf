package bench

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"testing"
)

// TestPlotHasEachFactor: the plot has a bar for each factor, in the order of the table. The bar
// begins at 1, on the side of its factor, and is as long as the factor's logarithm.
func TestPlotHasEachFactor(t *testing.T) {
	table := Table{Machine: Machine{CPU: "A & B"}, Rows: []Row{
		{"request", "µs", []Cell{{Column: ours, Factor: 1}, {Column: natsServer, Factor: 10}, {Column: grpcDirect, Factor: 0.1}}},
		{"idle", "MiB", []Cell{{Column: ours, Factor: 1}, {Column: natsServer}, {Column: socket, Factor: 0.02}}}, // NATS used nothing
		{"without", "µs", []Cell{{Column: natsServer}}},
		{"value", "µs", []Cell{{Column: ours, Factor: 1}, {Column: vllmOmni, Factor: 1}, {Column: segmentFiles, Factor: 250}}},
	}}
	factors := []float64{10, 0.1, 0.02, 1, 250}
	drawn, ticks, words := plotOf(t, table)
	if len(drawn) != len(factors) {
		t.Fatalf("%d bars, want %d", len(drawn), len(factors))
	}
	for i, factor := range factors {
		length := math.Log10(factor) * (ticks["10"] - ticks["1"])
		if want := ticks["1"] + min(length, 0); math.Abs(drawn[i].x-want) > 0.11 {
			t.Errorf("the bar of %v begins at %v, want %v", factor, drawn[i].x, want)
		}
		if want := math.Abs(length); math.Abs(drawn[i].width-want) > 0.11 {
			t.Errorf("the bar of %v is %v long, want %v", factor, drawn[i].width, want)
		}
		if i > 0 && drawn[i].y < drawn[i-1].y+barHeight {
			t.Errorf("the bar of %v covers the one above", factor)
		}
	}
	for _, want := range []string{"request", "idle", "value", natsServer, grpcDirect, socket, vllmOmni, segmentFiles, "0.10", "250", "A & B"} {
		if !strings.Contains(words, want) {
			t.Errorf("the plot does not contain %q", want)
		}
	}
	if strings.Contains(words, "without\n") {
		t.Error("the plot has a row without a bar")
	}
}

// TestPlotOfNothing: a table without factors, as of an interrupted run, is an axis without bars.
func TestPlotOfNothing(t *testing.T) {
	if drawn, ticks, _ := plotOf(t, Table{}); len(drawn) != 0 || ticks["0.1"] >= ticks["1"] || ticks["1"] >= ticks["10"] {
		t.Errorf("%d bars, and ticks at %v", len(drawn), ticks)
	}
}

type drawnBar struct{ x, y, width float64 }

// plotOf reads the bars, the places of the axis's figures, and all texts of a table's plot.
func plotOf(t *testing.T, table Table) (drawn []drawnBar, ticks map[string]float64, words string) {
	t.Helper()
	ticks = make(map[string]float64)
	var last map[string]string
	var svg strings.Builder
	if err := table.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	for dec := xml.NewDecoder(strings.NewReader(svg.String())); ; {
		token, err := dec.Token()
		if errors.Is(err, io.EOF) {
			return drawn, ticks, words
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.CharData:
			if words += string(token) + "\n"; last["text-anchor"] == "middle" {
				ticks[string(token)] = pixels(t, last["x"])
				last = nil
			}
		case xml.StartElement:
			if last = attributes(token); last["class"] == "bar" {
				drawn = append(drawn, drawnBar{pixels(t, last["x"]), pixels(t, last["y"]), pixels(t, last["width"])})
			}
		}
	}
}

func attributes(element xml.StartElement) map[string]string {
	all := make(map[string]string)
	for _, a := range element.Attr {
		all[a.Name.Local] = a.Value
	}
	return all
}

func pixels(t *testing.T, text string) float64 {
	t.Helper()
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
