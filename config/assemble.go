package config

import (
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// maxFiles bounds the files that stand on each other by base_config.
const maxFiles = 16

// The keys of a file that say what it is put together from.
const (
	keyBase      = "base_config"
	keyPlatforms = "platforms"
)

// An assembly puts one tree together from what a file consists of: the file,
// those that it stands on, one of its platforms, and variables. Each value
// keeps the position where it was written.
type assembly struct {
	*checker
	opts Options
	vars *expander
}

func newAssembly(c *checker, opts Options) *assembly {
	return &assembly{checker: c, opts: opts, vars: &expander{checker: c, lookup: opts.LookupEnv, noteUnset: opts.NoteUnset, done: make(map[*node]bool)}}
}

// tree returns the root of the tree to check, or nil after reporting why there
// is none. Variables come last, so that only those must be set that count.
func (a *assembly) tree(data []byte) *node {
	root := a.parse(data)
	if root == nil || root.kind != kindMap {
		return root // which the checker refuses
	}
	root = a.files(root)
	if root == nil {
		return nil
	}
	root = a.platform(root)
	if a.vars.node(root); a.vars.full {
		return nil
	}
	return root
}

// files lays a file over those that it stands on.
func (a *assembly) files(root *node) *node {
	layers, names := []*node{root}, []string{filepath.Clean(a.file)}
	for {
		at := layers[len(layers)-1].get(keyBase)
		if at == nil || at.kind == kindNull {
			break
		}
		base, name := a.base(at, names)
		if base == nil {
			return nil
		}
		layers, names = append(layers, base), append(names, name)
	}
	slices.Reverse(layers)
	merged := layers[0]
	for _, top := range layers[1:] {
		merged = a.fileOver(merged, top)
	}
	return merged.without(keyBase)
}

// base reads the file that base_config names, nil after a problem. The names
// are those of the files that stand on it.
func (a *assembly) base(at *node, names []string) (*node, string) {
	a.vars.node(at)
	path, ok := at.value.(string)
	switch {
	case !ok || path == "":
		a.problemf(at.pos, "%s must be the path of a file, relative to the folder of this one, not %s", keyBase, describe(at))
		return nil, ""
	case a.opts.Open == nil:
		a.problemf(at.pos, "%s names another file, and this program reads this one alone: merge the two into one", keyBase)
		return nil, ""
	case len(names) == maxFiles:
		a.problemf(at.pos, "more than %d files stand on each other by %s: merge some into one", maxFiles, keyBase)
		return nil, ""
	}
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(cmp.Or(at.pos.File, a.file)), path)
	}
	path = filepath.Clean(path)
	if i := slices.Index(names, path); i >= 0 {
		a.problemf(at.pos, "a file cannot stand on itself: %s -> %s", strings.Join(names[i:], " -> "), path)
		return nil, ""
	}
	data, err := readFile(path, a.opts)
	if err != nil {
		a.problemf(at.pos, "%s: %s cannot be read: %v", keyBase, path, reason(err))
		return nil, ""
	}
	return a.parseBase(path, data), path
}

// reason is why a file could not be read, without its path.
func reason(err error) error {
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return failed.Err
	}
	return err
}

// parseBase parses another file, whose positions carry its name.
func (a *assembly) parseBase(path string, data []byte) *node {
	c := &checker{file: path, origin: path, values: a.values}
	root := c.parse(data)
	if root != nil && !c.isMap(root, "a pipeline file") {
		root = nil
	}
	a.values = c.values
	a.problems = append(a.problems, c.problems...)
	return root
}

// platform lays the chosen one over the file, and takes all of them away.
func (a *assembly) platform(root *node) *node {
	all := root.get(keyPlatforms)
	name := a.opts.Platform
	if all == nil || all.kind == kindNull {
		if name != "" {
			a.problemf(root.pos, "there is no platform %q: the file has no %s", name, keyPlatforms)
		}
		return root.without(keyPlatforms)
	}
	if !a.isMap(all, keyPlatforms) {
		return root.without(keyPlatforms)
	}
	var names []string
	for _, e := range all.entries {
		names = append(names, e.key)
	}
	chosen := all.get(name)
	switch {
	case name == "" && len(names) > 0:
		a.notef(root.keyPos(keyPlatforms), "none of the platforms is chosen (%s): the file counts without them", strings.Join(names, ", "))
	case name == "":
	case chosen == nil && len(names) == 0:
		a.problemf(root.keyPos(keyPlatforms), "there is no platform %q: %s is empty", name, keyPlatforms)
	case chosen == nil:
		a.problemf(root.keyPos(keyPlatforms), "there is no platform %q: the file has %s", name, strings.Join(names, ", "))
	case chosen.kind != kindNull && a.isMap(chosen, "the platform "+name):
		root = a.platformOver(root, chosen)
	}
	return root.without(keyPlatforms)
}

// platformOver lays the section of a platform over its file.
func (a *assembly) platformOver(root, chosen *node) *node {
	for _, key := range []string{keyBase, keyPlatforms} {
		if chosen.get(key) != nil {
			a.problemf(chosen.keyPos(key), "%s stands at the top of a file, not in a platform", key)
		}
	}
	chosen = chosen.without(keyBase, keyPlatforms)
	stage := maps.Clone(stageRules)
	for key := range stage {
		stage[key] = eachKey
	}
	stage["env"] = eachKey
	stage["runtime"] = byKey(map[string]rule{"env": eachKey}, replace)
	stage[keyOmnibus] = ours
	return byKey(a.sections(a.stages(stage, false)), replace)(root, chosen)
}
