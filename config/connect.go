package config

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/flow"
)

// Plan lists the edges with their connectors, for programs that hand values
// over themselves, beside a bus or without one.
func (p *Pipeline) Plan() flow.Plan {
	plan := make(flow.Plan, len(p.Edges))
	for i, e := range p.Edges {
		plan[i] = flow.Use{
			Edge: connector.Edge{From: e.From, To: e.To},
			Name: e.Connector.Name, Type: e.Connector.Type, Extra: e.Connector.Extra.Map(),
		}
	}
	return plan
}

// Connect opens the connectors of those edges whose payloads do not stay in the
// bus's store, and gives them to the edges of a pipeline that Build or BuildHost
// returned. The bus closes them; after an error nothing is open.
func (p *Pipeline) Connect(ctx context.Context, types *connector.Registry, to *bus.Pipeline) error {
	byName := make(map[string]*connector.Connector)
	var opened []*connector.Connector
	for i, e := range p.Edges {
		if e.Connector.inStore() {
			continue
		}
		c := byName[e.Connector.Name]
		if c == nil {
			var err error
			if c, err = types.Open(ctx, e.Connector.Type, connector.Options{Extra: e.Connector.Extra.Map()}); err != nil {
				at := e.Connector.Pos
				err = fmt.Errorf("%w: %s:%d:%d: the edge %s -> %s: %w", ErrBuild, cmp.Or(at.File, p.File), at.Line, at.Column, e.From, e.To, err)
				return errors.Join(err, closeAll(opened))
			}
			opened = append(opened, c)
			if e.Connector.Name != "" {
				byName[e.Connector.Name] = c
			}
		}
		to.Edges[i].Connector = c
	}
	return nil
}

// inStore reports whether payloads of such a connector stay in the bus's own
// store, which is how the mode ring works within a bus.
func (c Connector) inStore() bool {
	mode, set := c.Extra.Get(modeKey)
	return c.Type == CudaIPC || c.Type == SharedMemory && (!set || mode == nil || mode == modeRing)
}

// inlineBytes is what the threshold of such a connector means to the bus: the largest payload
// that travels in its message; negative is none, and 0 what the bus has for all edges.
func (c Connector) inlineBytes() int {
	most, set := c.ThresholdBytes()
	switch {
	case !set || !c.inStore():
		return 0
	case most == 0:
		return -1
	}
	return int(min(most, math.MaxInt32))
}

// valueBounds are the settings that bound a value of a type of connector, and their defaults.
var valueBounds = map[string]struct {
	key      string
	defaults int64
}{
	"MooncakeConnector":               {"localbuf", 64 << 20},
	"MooncakeStoreConnector":          {"localbuf", 64 << 20},
	"MooncakeTransferEngineConnector": {"memory_pool_size", 512 << 20},
	"NixlConnector":                   {"memory_pool_size", 512 << 20},
}

// largestValue is the size of the largest value that such a connector takes; 0 where no setting says it.
func (c Connector) largestValue() int64 {
	bound := valueBounds[c.Type]
	if value, set := c.Extra.Get(bound.key); set {
		if bytes, ok := value.(int64); ok {
			return bytes
		}
	}
	return bound.defaults
}

func closeAll(all []*connector.Connector) error {
	var errs []error
	for _, c := range all {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
