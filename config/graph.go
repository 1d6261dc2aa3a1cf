package config

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/omnibus-runtime/omnibus/internal/columns"
)

// WriteText draws the pipeline as text: the stages by their distance from the
// start, each with the edges that leave it. The error is that of the writer.
func (p *Pipeline) WriteText(to io.Writer) error {
	out := bufio.NewWriter(to)
	fmt.Fprintf(out, "%s: %s, %s\n", p.Name, plural(len(p.Stages), "stage"), plural(len(p.Edges), "edge"))
	inputs, outputs := p.neighbours()
	for depth, stages := range p.levels(inputs) {
		fmt.Fprintf(out, "\ndepth %d\n", depth)
		width := 0
		for _, s := range stages {
			width = max(width, columns.Width(s.name()))
		}
		for _, s := range stages {
			facts := append(s.origin(inputs[s.ID]), s.facts()...)
			writeLine(out, "  %s  %s", columns.Pad(s.name(), width), strings.Join(facts, ", "))
			writeArrows(out, outputs[s.ID])
		}
	}
	return out.Flush()
}

// writeArrows draws the edges that leave a stage, with their columns aligned.
func writeArrows(out io.Writer, edges []Edge) {
	var toWidth, connectorWidth int
	for _, e := range edges {
		toWidth = max(toWidth, columns.Width(e.To))
		connectorWidth = max(connectorWidth, columns.Width(e.Connector.String()))
	}
	for i, e := range edges {
		branch := "├─▶"
		if i == len(edges)-1 {
			branch = "└─▶"
		}
		writeLine(out, "    %s %s  %s  %s", branch, columns.Pad(e.To, toWidth), columns.Pad(e.Connector.String(), connectorWidth), e.limits())
	}
}

// writeLine writes a line without the blanks that fill its last columns.
func writeLine(out io.Writer, format string, args ...any) {
	fmt.Fprintln(out, strings.TrimRight(fmt.Sprintf(format, args...), " "))
}

// name is the id of a stage and what people know it by.
func (s *Stage) name() string {
	if title := s.title(); title != "" {
		return s.ID + " (" + title + ")"
	}
	return s.ID
}

// origin says where the input of a stage comes from.
func (s *Stage) origin(inputs []Edge) []string {
	if len(inputs) == 0 {
		return nil
	}
	from := make([]string, len(inputs))
	for i, e := range inputs {
		from[i] = e.From
	}
	if s.Join {
		return []string{"joins " + strings.Join(from, " + ")}
	}
	return []string{"from " + strings.Join(from, ", ")}
}

// title is the name that people know the stage by, if it is not the id.
func (s *Stage) title() string {
	if s.Handler != s.ID {
		return s.Handler
	}
	for _, path := range [][]string{{"engine_args", "model_stage"}, {"model_stage"}} {
		value, _ := s.Settings.Get(path...)
		if name, ok := value.(string); ok && validStageID(name) && name != s.ID {
			return name
		}
	}
	return ""
}

func (s *Stage) facts() []string {
	var facts []string
	if s.Replicas > 1 {
		facts = append(facts, fmt.Sprintf("%d replicas", s.Replicas))
	}
	if s.MaxInflight > 0 {
		facts = append(facts, fmt.Sprintf("%d in flight", s.MaxInflight))
	}
	switch {
	case s.Exec != nil:
		facts = append(facts, "own process")
	case s.Attach:
		facts = append(facts, "attached process")
	}
	if s.FinalOutput && validStageID(s.FinalOutputType) {
		facts = append(facts, "output "+s.FinalOutputType)
	} else if s.FinalOutput {
		facts = append(facts, "output")
	}
	return facts
}

// limits describes the window of an edge and what happens when it is full.
func (e *Edge) limits() string {
	var parts []string
	switch {
	case e.WindowSize == Unbounded:
		parts = append(parts, "window all")
	case e.WindowSize > 0:
		parts = append(parts, fmt.Sprintf("window %d", e.WindowSize))
	}
	if e.WindowBytes > 0 {
		parts = append(parts, formatSize(e.WindowBytes))
	}
	if e.Policy != "" && e.Policy != PolicyBlock {
		parts = append(parts, string(e.Policy)+" when full")
	}
	if e.TensorTransport != "" && e.TensorTransport != TensorsDefault {
		tensors := "tensors by " + string(e.TensorTransport)
		if e.MinBytes > 0 {
			tensors += " from " + formatSize(e.MinBytes)
		}
		parts = append(parts, tensors)
	}
	return strings.Join(parts, ", ")
}

// levels groups the stages by the longest way to them from a stage without
// inputs. Stages are in topological order, so one pass is enough.
func (p *Pipeline) levels(inputs map[string][]Edge) [][]*Stage {
	var levels [][]*Stage
	depth := make(map[string]int, len(p.Stages))
	for i := range p.Stages {
		s := &p.Stages[i]
		for _, e := range inputs[s.ID] {
			depth[s.ID] = max(depth[s.ID], depth[e.From]+1)
		}
		for len(levels) <= depth[s.ID] {
			levels = append(levels, nil)
		}
		levels[depth[s.ID]] = append(levels[depth[s.ID]], s)
	}
	return levels
}

func (p *Pipeline) neighbours() (inputs, outputs map[string][]Edge) {
	inputs, outputs = make(map[string][]Edge), make(map[string][]Edge)
	for _, e := range p.Edges {
		inputs[e.To] = append(inputs[e.To], e)
		outputs[e.From] = append(outputs[e.From], e)
	}
	return inputs, outputs
}

// WriteDOT writes the pipeline as a Graphviz digraph. Stages whose output
// leaves the pipeline have a double border; automatic connectors are dashed.
// The error is that of the writer.
func (p *Pipeline) WriteDOT(to io.Writer) error {
	out := bufio.NewWriter(to)
	fmt.Fprintf(out, "digraph %s {\n\trankdir=LR;\n\tnode [shape=box];\n", dotString(p.Name))
	for i := range p.Stages {
		s := &p.Stages[i]
		label := append([]string{s.name()}, s.facts()...)
		fmt.Fprintf(out, "\t%s [label=%s%s];\n", dotString(s.ID), dotString(label...), when(s.FinalOutput, ", peripheries=2"))
	}
	for _, e := range p.Edges {
		label := []string{e.Connector.String()}
		if limits := e.limits(); limits != "" {
			label = append(label, limits)
		}
		fmt.Fprintf(out, "\t%s -> %s [label=%s%s];\n",
			dotString(e.From), dotString(e.To), dotString(label...), when(e.Connector.Auto, ", style=dashed"))
	}
	fmt.Fprintln(out, "}")
	return out.Flush()
}

// dotString quotes lines of text for Graphviz, where a quote is escaped, and
// a backslash starts an escape in a label.
func dotString(lines ...string) string {
	escape := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`)
	escaped := make([]string, len(lines))
	for i, line := range lines {
		escaped[i] = escape.Replace(line)
	}
	return `"` + strings.Join(escaped, `\n`) + `"`
}

func when(condition bool, text string) string {
	if condition {
		return text
	}
	return ""
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// formatSize writes bytes in the largest binary unit that divides them.
func formatSize(bytes int64) string {
	for _, unit := range []string{"TiB", "GiB", "MiB", "KiB"} {
		if size := sizeUnits[unit]; bytes%size == 0 {
			return fmt.Sprintf("%d %s", bytes/size, unit)
		}
	}
	return fmt.Sprintf("%d bytes", bytes)
}
