package layers

import (
	"maps"
	"slices"
	"testing"
)

func TestPackagesAreSmall(t *testing.T) {
	folders := readTree(t)
	const what = "lines of code are in %s: let packages of their own have parts of it"
	report(t, checkFigures(packageLines(folders), mostLines, packagesAbove, what))
	parts := partLines(folders, slices.Collect(maps.Keys(partsOfMap)))
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		above := make(map[string]int)
		if n, ok := partsAbove[name]; ok {
			above[name] = n
		}
		report(t, checkFigures(map[string]int{name: parts[name]}, partsOfMap[name], above, "lines of code are in %s and below it: delete what it does not need"))
		t.Logf("%6d lines of %5d: %s and what is below it", parts[name], partsOfMap[name], name)
	}
	lines := packageLines(folders)
	for _, name := range largest(lines, len(lines)) {
		t.Logf("%6d lines: %s", lines[name], name)
	}
}

// packageLines are the lines of code of each package: no comments, no tests, nothing generated.
func packageLines(folders []folder) map[string]int {
	figures := make(map[string]int)
	for _, dir := range folders {
		for _, f := range dir.files {
			if !f.isTest() && !f.generated {
				figures[dir.path] += f.code
			}
		}
	}
	return figures
}

// partLines are those of parts, with the packages below them.
func partLines(folders []folder, parts []string) map[string]int {
	figures := make(map[string]int)
	for dir, n := range packageLines(folders) {
		for _, part := range parts {
			if within(dir, part) {
				figures[part] += n
			}
		}
	}
	return figures
}

func TestPackagesCanBeLarge(t *testing.T) {
	folders := []folder{
		{path: "a", files: []file{{name: "a.go", code: 3}, {name: "b.go", code: 4}, {name: "c_test.go", code: 9}, {name: "d.go", code: 9, generated: true}}},
		{path: "a/b", files: []file{{name: "a.go", code: 2}}},
		{path: "ab", files: []file{{name: "a.go", code: 1}}},
	}
	if got, want := packageLines(folders), map[string]int{"a": 7, "a/b": 2, "ab": 1}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got, want := partLines(folders, []string{"a", "ab"}), map[string]int{"a": 9, "ab": 1}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
