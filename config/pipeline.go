package config

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
)

// maxNameBytes bounds a pipeline's name, which becomes part of file names.
const maxNameBytes = 64

// A reading is the state of reading one file into a pipeline.
type reading struct {
	*checker
	defined    map[string]Connector
	used       map[string]bool
	window     int      // runtime.defaults.window_size
	inflight   int      // runtime.defaults.max_inflight
	memory     Position // of omnibus.memory
	incomplete bool     // a stage was left out: references may seem to dangle
}

// sections are the parts of a file, wherever its shape puts them.
type sections struct {
	stageArgs, stages           *node
	connectors, edges           *node
	omnibus, pipeline           *node
	runtime, defaults           *node
	innerConnectors, innerEdges *node // under runtime
	enabled                     bool
}

func (c *checker) pipeline(root *node) *Pipeline {
	if !c.isMap(root, "a pipeline file") {
		return nil
	}
	r := &reading{checker: c, used: make(map[string]bool)}
	p := &Pipeline{File: c.file}
	s := r.sections(root, p)
	stages := c.shape(root, s)
	if window := root.get("active_stream_window"); window != nil && window.value != int64(0) {
		c.notef(window.pos, "active_stream_window is a setting of vLLM-Omni, and has no effect here: omnibus: {max_requests: N} bounds the requests that are under way")
	}
	r.defaults(s.defaults)
	r.bus(s, p)
	r.defined = c.connectors(s.connectors)
	p.Connectors = r.defined
	if stages == nil {
		return p
	}
	drafts := r.stages(stages)
	if len(stages.items) == 0 && stages.kind == kindList {
		c.problemf(stages.pos, "the pipeline has no stage")
	}
	if len(drafts) > bus.MaxStages {
		c.problemf(drafts[bus.MaxStages].Pos, "more than %d stages", bus.MaxStages)
		return p
	}
	if p.Bus.Memory == MemoryHeap && slices.ContainsFunc(drafts, func(d draft) bool { return d.Remote() }) {
		c.problemf(r.memory, "memory must be shared, or left out, because the file has stages with processes of their own, which cannot read this one's heap")
	}
	r.resolve(p, drafts, s.edges)
	r.unused()
	return p
}

// sections finds the parts of the file and keeps what it does not know.
func (c *reading) sections(root *node, p *Pipeline) *sections {
	s := &sections{enabled: true}
	known, shared := c.fileFields(s)
	p.Settings = c.open(root, "the file", known, shared)
	if s.runtime == nil {
		return s
	}
	known, shared = c.runtimeFields(s)
	if rest := c.open(s.runtime, "runtime", known, shared); rest != nil {
		p.Settings = append(p.Settings, Setting{"runtime", rest})
	}
	s.connectors = c.either(root, s.runtime, "connectors", s.connectors, s.innerConnectors)
	s.edges = c.either(root, s.runtime, "edges", s.edges, s.innerEdges)
	return s
}

// either returns a section that may stand at the top or under runtime.
func (c *checker) either(root, runtime *node, key string, top, inner *node) *node {
	switch {
	case top == nil:
		return inner
	case inner != nil:
		c.problemf(later(root.keyPos(key), runtime.keyPos(key)), "%s stands both at the top and under runtime: keep one of them", key)
	}
	return top
}

// later returns the position that stands later, or in the file on top.
func later(a, b Position) Position {
	if a.File == b.File && a.compare(b) > 0 || a.File != b.File && a.File == "" {
		return a
	}
	return b
}

// shape returns the list of stages.
func (c *checker) shape(root *node, s *sections) *node {
	switch {
	case s.stageArgs != nil && s.stages != nil:
		c.problemf(later(root.keyPos("stage_args"), root.keyPos("stages")),
			"the file has both stage_args, the older shape, and stages, the newer one: keep one of them")
		return nil
	case s.stageArgs == nil && s.stages == nil:
		c.problemf(root.pos, "this is no pipeline file: it has neither stages nor stage_args at the top")
		return nil
	}
	stages := s.stageArgs
	if stages == nil {
		stages = s.stages
	}
	if stages.kind == kindNull {
		c.problemf(stages.pos, "the pipeline has no stage")
		return nil
	}
	return stages
}

func (c *reading) defaults(n *node) {
	if n != nil {
		c.closed(n, "runtime.defaults", c.defaultsFields())
	}
}

// bus reads the settings of the bus and names the pipeline.
func (c *reading) bus(s *sections, p *Pipeline) {
	if s.omnibus != nil {
		c.closed(s.omnibus, "the omnibus settings", c.busFields(p))
	}
	if s.pipeline != nil {
		name, _ := s.pipeline.value.(string)
		if p.Name == "" {
			p.Name = toName(name)
		}
	}
	if p.Name == "" {
		base := filepath.Base(c.file)
		p.Name = toName(strings.TrimSuffix(base, filepath.Ext(base)))
	}
	if p.Name == "" {
		p.Name = "pipeline"
	}
}

func (c *checker) name(at *string) reader {
	return reader{func(key string, n *node) {
		if v, ok := n.value.(string); ok && CheckName(v) == nil {
			*at = v
			return
		}
		c.problemf(n.pos, "%s %s, not %s", key, nameRule, describe(n))
	}, schema{"type": "string", "pattern": namePattern}}
}

// nameRule is what a name must be.
var nameRule = fmt.Sprintf("must be text of at most %d letters, digits, '.', '_' and '-'", maxNameBytes)

// CheckName says what is wrong with the name of a bus, after which files are named.
func CheckName(name string) error {
	if name == "" || name != toName(name) {
		return fmt.Errorf("%q %s", name, nameRule)
	}
	return nil
}

// toName replaces what may not stand in the name of a pipeline.
func toName(s string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', strings.ContainsRune("._-", r):
			return r
		}
		return '-'
	}, s)
	name = name[:min(len(name), maxNameBytes)]
	if strings.Trim(name, ".") == "" {
		return ""
	}
	return name
}

// definedNames says what could have been meant by a name.
func (c *reading) definedNames(name string) string {
	if len(c.defined) == 0 {
		return "the file defines no connectors"
	}
	return "the nearest that is defined is " + quote(nearest(name, slices.Sorted(maps.Keys(c.defined))))
}

func quote(s string) string { return `"` + s + `"` }

// unused notes connectors without an edge: vLLM-Omni reads their settings
// nowhere, and they are often meant for an edge that went automatic.
func (c *reading) unused() {
	for name, connector := range c.defined {
		if !c.used[name] {
			c.notef(connector.Pos, "no edge uses the connector %q", name)
		}
	}
}
