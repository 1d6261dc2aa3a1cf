package layers

import (
	"fmt"
	"slices"
	"strings"
)

// checkLayers compares the imports between the parts with the layer table.
func checkLayers(folders []folder, table []layer) []string {
	var broken []string
	for _, dir := range folders {
		l, ok := layerOf(dir.path, table)
		if !ok {
			broken = append(broken, fmt.Sprintf("%s: no layer is known for %q; add it to the table in internal/layers/rules_test.go with the reason", dir.path, part(dir.path)))
			continue
		}
		for _, f := range dir.files {
			if !f.isTest() {
				broken = append(broken, checkLayerOf(l, dir, f, table)...)
			}
		}
	}
	return broken
}

// layerOf finds the layer of a package: that of the longest part it lies in.
func layerOf(rel string, table []layer) (found layer, ok bool) {
	for _, l := range table {
		if within(rel, l.part) && len(l.part) > len(found.part) {
			found, ok = l, true
		}
	}
	return found, ok
}

func checkLayerOf(l layer, dir folder, f file, table []layer) []string {
	var broken []string
	for _, imported := range f.imports {
		rel, ok := local(imported)
		if !ok {
			continue
		}
		if to, known := layerOf(rel, table); known && (to.part == l.part || slices.Contains(l.may, to.part)) {
			continue
		}
		broken = append(broken, fmt.Sprintf("%s imports %s, and %s may import %s: %s", at(dir, f), rel, l.part, list(l.may), l.reason))
	}
	return broken
}

func list(parts []string) string {
	if len(parts) == 0 {
		return "nothing of this module"
	}
	return "only " + strings.Join(parts, ", ")
}

// checkBans looks for packages from outside where they are not wanted.
func checkBans(folders []folder, bans []ban) []string {
	var broken []string
	for _, dir := range folders {
		for _, f := range dir.files {
			if f.generated {
				continue
			}
			for _, b := range bans {
				if b.covers(dir.path) && (b.tests || !f.isTest()) {
					broken = append(broken, b.find(at(dir, f), f.imports)...)
				}
			}
		}
	}
	return broken
}

func (b ban) covers(rel string) bool {
	in := func(part string) bool { return within(rel, part) }
	if slices.ContainsFunc(b.except, in) {
		return false
	}
	return len(b.from) == 0 || slices.ContainsFunc(b.from, in)
}

func (b ban) find(importer string, imports []string) []string {
	var broken []string
	for _, imported := range imports {
		if within(imported, b.path) {
			broken = append(broken, fmt.Sprintf("%s must not import %s: %s", importer, imported, b.reason))
		}
	}
	return broken
}

// checkModules looks for modules that go.mod must not name.
func checkModules(modules []string, strangers []ban) []string {
	var broken []string
	for _, b := range strangers {
		broken = append(broken, b.find("go.mod", modules)...)
	}
	return broken
}

// checkUnsafe keeps unsafe where a reader looks for it.
func checkUnsafe(folders []folder) []string {
	var broken []string
	for _, dir := range folders {
		for _, f := range dir.files {
			// x_unsafe.go, x_unsafe_linux.go, x_unsafe_test.go
			named := strings.Contains(f.name, "_unsafe.") || strings.Contains(f.name, "_unsafe_")
			if slices.Contains(f.imports, "unsafe") && !named && !f.generated {
				broken = append(broken, fmt.Sprintf("%s imports unsafe: move that code to a file named x_unsafe.go, where reviewers look for it", at(dir, f)))
			}
		}
	}
	return broken
}
