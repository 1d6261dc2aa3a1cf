package config

import (
	"slices"
	"strconv"
)

// keyOmnibus is the key of the bus's own settings, at the top and in a stage.
const keyOmnibus = "omnibus"

// A rule says what becomes of a value with another laid over it; nil takes it
// away.
type rule func(base, top *node) *node

// replace leaves what is on top.
func replace(_, top *node) *node { return top }

// everyKey merges maps at every level.
func everyKey(base, top *node) *node { return byKey(nil, everyKey)(base, top) }

// eachKey merges maps at one level.
func eachKey(base, top *node) *node { return byKey(nil, replace)(base, top) }

// ours merges settings of the bus. There a null, which is no setting, takes one
// away.
func ours(base, top *node) *node {
	if top.kind == kindNull {
		return nil
	}
	return byKey(nil, ours)(base, top)
}

// section leaves a section as it is where there is only a null on top.
func section(r rule) rule {
	return func(base, top *node) *node {
		if top.kind == kindNull {
			return base
		}
		return r(base, top)
	}
}

// byKey merges maps key by key, by the rules of the keys. Anything else is
// replaced. The nodes that are merged stay as they are: others may share them.
func byKey(rules map[string]rule, other rule) rule {
	return func(base, top *node) *node {
		if base.kind != kindMap || top.kind != kindMap {
			return top
		}
		merged := &node{kind: kindMap, pos: top.pos, entries: slices.Clone(base.entries)}
		places := make(map[string]int, len(merged.entries))
		for i, e := range merged.entries {
			places[e.key] = i
		}
		for _, e := range top.entries {
			i, there := places[e.key]
			if !there {
				merged.entries = append(merged.entries, e)
				continue
			}
			r := rules[e.key]
			if r == nil {
				r = other
			}
			e.value = r(merged.entries[i].value, e.value)
			merged.entries[i] = e
		}
		merged.entries = slices.DeleteFunc(merged.entries, func(e entry) bool { return e.value == nil })
		return merged
	}
}

// stageRules are the keys of a stage that do not replace those below them.
// Except for the settings of the bus they are vLLM-Omni's choice.
var stageRules = map[string]rule{
	"default_sampling_params":   everyKey,
	"default_pooling_params":    everyKey,
	"subtalker_sampling_params": everyKey,
	"engine_extras":             everyKey,
	"engine_args":               everyKey,
	keyOmnibus:                  ours,
}

// sections are the rules of the keys of a file, given that of its stages.
func (a *assembly) sections(stages rule) map[string]rule {
	return map[string]rule{
		"stages":     section(stages),
		"stage_args": section(stages),
		"connectors": section(everyKey),
		"runtime":    section(everyKey),
		keyOmnibus:   ours,
	}
}

// fileOver lays a file over another.
func (a *assembly) fileOver(base, top *node) *node {
	rules := a.sections(a.stages(stageRules, true))
	rules[keyPlatforms] = section(byKey(nil, section(byKey(a.sections(a.stages(stageRules, true)), replace))))
	return byKey(rules, replace)(base, top)
}

// stages merges lists of stages by their ids. What is on top may add stages, or
// only change those that there are.
func (a *assembly) stages(keys map[string]rule, add bool) rule {
	return func(base, top *node) *node {
		if base.kind != kindList || top.kind != kindList {
			return top
		}
		merged := &node{kind: kindList, pos: top.pos, items: slices.Clone(base.items)}
		places := make(map[string]int, len(merged.items))
		for i, item := range merged.items {
			if id, ok := a.id(item); ok {
				places[id] = i
			}
		}
		for _, item := range top.items {
			id, ok := a.id(item)
			i, there := places[id]
			switch {
			case ok && there:
				merged.items[i] = byKey(keys, replace)(merged.items[i], item)
				delete(places, id) // one that stands there twice is for the checker to refuse
			case ok && !add:
				a.problemf(item.get(keyStageID).pos, "the platform changes the stage %s, which the file does not have, or changes it twice", shorten(id))
			default:
				merged.items = append(merged.items, item)
			}
		}
		return merged
	}
}

// id returns the id of a stage, if it has one. A bad one is for the checker.
func (a *assembly) id(stage *node) (string, bool) {
	n := stage.get(keyStageID)
	if n == nil {
		return "", false
	}
	a.vars.node(n)
	switch v := n.value.(type) {
	case int64:
		return strconv.FormatInt(v, 10), true
	case string:
		return v, true
	}
	return "", false
}

// without returns a map without some keys.
func (n *node) without(keys ...string) *node {
	rest := *n
	rest.entries = slices.DeleteFunc(slices.Clone(n.entries), func(e entry) bool { return slices.Contains(keys, e.key) })
	return &rest
}
