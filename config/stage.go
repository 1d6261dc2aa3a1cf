package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/omnibus-runtime/omnibus/bus"
)

// keyStageID is the key of a stage's id.
const keyStageID = "stage_id"

// MaxRestarts bounds how often a process is started again within a minute.
const MaxRestarts = 1000

// A draft is a stage with what else its entry says about edges.
type draft struct {
	Stage
	inputs, outputs []reference
	sources         []reference
	// The places in the entry that bound the requests at the stage.
	ownInflight, runtimeInflight, flatInflight int
	ours, runtime, outputType                  *node
	unordered                                  bool
	unorderedPos                               Position
	joinPos, attachPos, routingPos, firstPos   Position
	alone                                      bool // it has no edges on purpose
}

// A reference is the mention of another stage, with the connector that the
// mention gives, if it gives one.
type reference struct {
	stage     string
	pos       Position
	connector *Connector
}

// stages reads the list of stages. Stages without a usable id are left out;
// c.incomplete then keeps references to them from being reported as well.
func (c *reading) stages(n *node) []draft {
	if n.kind != kindList {
		c.problemf(n.pos, "the stages must be a list, not %s", describe(n))
		return nil
	}
	var drafts []draft
	first := make(map[string]Position)
	for _, item := range n.items {
		d, ok := c.stage(item)
		if !ok {
			c.incomplete = true
			continue
		}
		if at, repeated := first[d.ID]; repeated {
			c.problemf(d.Pos, "the stage %s is defined twice, first on %s", d.ID, at.line(d.Pos))
			continue
		}
		first[d.ID] = d.Pos
		drafts = append(drafts, d)
	}
	return drafts
}

func (c *reading) stage(n *node) (draft, bool) {
	d := draft{Stage: Stage{Pos: n.pos}}
	if !c.isMap(n, "a stage") {
		return d, false
	}
	id := n.get(keyStageID)
	if id == nil {
		c.problemf(n.pos, "the stage has no stage_id")
	} else {
		d.Pos = id.pos
		d.ID, _ = c.stageID(keyStageID, id)
	}
	known, shared := c.stageFields(&d)
	d.Settings = c.open(n, "a stage", known, shared)
	if d.outputType != nil {
		d.FinalOutputType, _ = d.outputType.value.(string)
	}
	if d.runtime != nil {
		c.open(d.runtime, "the stage's runtime", nil, c.stageRuntimeFields(&d))
	}
	if d.ours != nil {
		c.stageOmnibus(d.ours, &d)
	}
	for _, at := range []*node{n, d.runtime} {
		if at == nil {
			continue
		}
		if replicas := at.get("num_replicas"); replicas != nil && replicas.value != int64(1) {
			c.notef(replicas.pos, "num_replicas is a setting of vLLM-Omni, and has no effect here: say omnibus: {replicas: N}")
		}
	}
	d.MaxInflight = firstSet(d.ownInflight, d.runtimeInflight, d.flatInflight)
	if d.Handler == "" {
		d.Handler = d.ID
	}
	return d, d.ID != ""
}

func firstSet(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}

// stageOmnibus reads the settings of the bus for one stage.
func (c *reading) stageOmnibus(n *node, d *draft) {
	c.closed(n, "the stage's omnibus settings", c.stageOmnibusFields(d))
	if d.Attach && d.Exec != nil {
		c.problemf(d.attachPos, "attach waits for a process that another program starts, and exec starts one: keep one of them")
	}
	if d.Routing != "" && d.Routing != RoutingSticky && d.State != StateNone {
		c.problemf(d.routingPos, "routing %s needs state: none, because a process that keeps state must see all of a request", d.Routing)
	}
	switch scattered := d.Routing != "" && d.Routing != RoutingSticky; {
	case scattered && !d.unordered:
		c.problemf(d.routingPos, "routing %s gives the messages of a request to several processes, whose results come in any order: say unordered: true if that is meant, or leave routing out", d.Routing)
	case d.unordered && !scattered:
		c.notef(d.unorderedPos, "unordered has no effect without routing least-queue or round-robin: results come in the order of the messages")
	}
	c.idle(n, "exec", n.get("exec") != nil, "env", "cwd", "restart", "max_restarts", "grace")
	c.idle(n, "exec or attach", n.get("exec") != nil || d.Attach, "routing", "start_timeout", "handle_timeout", "first_timeout")
	if d.FirstTimeout > 0 && (d.HandleTimeout == 0 || d.FirstTimeout < d.HandleTimeout) {
		c.problemf(d.firstPos, "first_timeout takes the place of handle_timeout for the first message of a process: want a handle_timeout, and no less than that")
	}
	if batch := n.get("batch"); batch != nil && (n.get("exec") != nil || d.Attach) {
		c.notef(batch.pos, "batch has no effect with exec or attach: the process says by itself how many messages it takes together (in Python @stage(batch=8), in Go BatchSize)")
	}
}

// idle notes keys that have no effect without something else.
func (c *checker) idle(n *node, without string, there bool, keys ...string) {
	for _, key := range keys {
		if value := n.get(key); value != nil && !there {
			c.notef(value.pos, "%s has no effect without %s", key, without)
		}
	}
}

func (c *checker) batch(at *Batch) reader {
	known := c.batchFields(at)
	return reader{func(_ string, n *node) { c.closed(n, "batch", known) }, known.settings()}
}

// stageID reads an id: a whole number, or text that can be printed.
func (c *checker) stageID(key string, n *node) (string, bool) {
	switch v := n.value.(type) {
	case int64:
		if v >= 0 {
			return strconv.FormatInt(v, 10), true
		}
	case string:
		if validStageID(v) {
			return v, true
		}
	}
	c.problemf(n.pos, `%s must be a whole number of at least 0, or text of at most %d printable bytes without "->" and "/", not %s`,
		key, bus.MaxStageName, describe(n))
	return "", false
}

// validStageID is the bus's rule for names, of printable ones: they become labels.
func validStageID(s string) bool {
	return printable(s, bus.MaxStageName) && !strings.Contains(s, "->") && !strings.Contains(s, "/")
}

// printable reports whether text of at most so many bytes can be printed and logged.
func printable(s string, most int) bool {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	return s != "" && len(s) <= most && strings.TrimSpace(s) == s && !strings.ContainsFunc(s, unprintable)
}

// sources reads engine_input_source, a list of ids.
func (c *reading) sources(at *[]reference) reader {
	return reader{func(key string, n *node) {
		if n.kind != kindList {
			c.problemf(n.pos, "%s must be a list of stages, such as [0], not %s", key, describe(n))
			return
		}
		for _, item := range n.items {
			id, ok := c.stageID("an element of "+key, item)
			if !ok {
				continue
			}
			if slices.ContainsFunc(*at, func(r reference) bool { return r.stage == id }) {
				c.problemf(item.pos, "%s names the stage %s twice", key, id)
				continue
			}
			*at = append(*at, reference{stage: id, pos: item.pos})
		}
	}, list(takesStageID)}
}

// references reads input_connectors or output_connectors: keys made of a
// prefix and an id, each with the name of a connector or a definition.
func (c *reading) references(at *[]reference, prefix string) reader {
	return reader{func(key string, n *node) {
		if !c.isMap(n, key) {
			return
		}
		for _, e := range n.entries {
			id, ok := strings.CutPrefix(e.key, prefix)
			if !ok || !validStageID(id) {
				c.problemf(e.pos, "the key %q in %s must be %s and the id of a stage, such as %s0", shorten(e.key), key, prefix, prefix)
				continue
			}
			*at = append(*at, reference{id, e.pos, c.connectorOf(e)})
		}
	}, referencesSchema(prefix)}
}

// connectorOf returns the connector that a reference names or defines, one
// without a type if that was refused.
func (c *reading) connectorOf(e entry) *Connector {
	if e.value.kind == kindMap {
		connector := c.connector(fmt.Sprintf("the connector of %s", e.key), e.value)
		return &connector
	}
	name, ok := e.value.value.(string)
	if !ok {
		c.problemf(e.value.pos, "%s must name a connector or define one, not %s", e.key, describe(e.value))
		return &Connector{}
	}
	connector, defined := c.defined[name]
	if !defined {
		c.problemf(e.value.pos, "undefined connector %q: %s", shorten(name), c.definedNames(name))
		return &Connector{}
	}
	c.used[name] = true
	return &connector
}
