package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/txtar"
)

// mutant is one planted mistake.
type mutant struct {
	name  string // of its file, without the extension
	why   string // the description of the mistake
	file  string // the source file, relative to the module
	suite suite  // the test that has to fail
	edits []edit
}

// suite is one run of go test.
type suite struct {
	pkg   string // as for go test, "./shmstore"
	test  string // regular expression for -run
	flags string // further flags, separated by spaces
}

// edit replaces whole lines.
type edit struct{ old, new []byte }

// errNotApplicable reports a mutant whose old text is not in the source exactly
// once. The code has changed; the mutant has to follow.
var errNotApplicable = errors.New("does not apply")

// loadMutants reads every mutant in dir, in the order of their names.
func loadMutants(dir string) ([]mutant, error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	mutants := make([]mutant, 0, len(paths))
	for _, path := range paths {
		archive, err := txtar.ParseFile(path)
		if err != nil {
			return nil, err
		}
		m, err := parseMutant(strings.TrimSuffix(filepath.Base(path), ".txtar"), archive)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		mutants = append(mutants, m)
	}
	return mutants, nil
}

func parseMutant(name string, archive *txtar.Archive) (mutant, error) {
	m := mutant{name: name}
	var why []string
	for line := range strings.Lines(string(archive.Comment)) {
		line = strings.TrimSpace(line)
		key, value, ok := strings.Cut(line, ": ")
		if field := m.header(key); ok && field != nil {
			*field = strings.TrimSpace(value)
			continue
		}
		why = append(why, line)
	}
	m.why = strings.TrimSpace(strings.Join(why, " "))

	var err error
	if m.edits, err = parseEdits(archive.Files); err != nil {
		return mutant{}, err
	}
	return m, m.validate()
}

// header returns the field for the value of a header line, nil for any other line.
func (m *mutant) header(key string) *string {
	switch key {
	case "file":
		return &m.file
	case "package":
		return &m.suite.pkg
	case "test":
		return &m.suite.test
	case "flags":
		return &m.suite.flags
	}
	return nil
}

func parseEdits(files []txtar.File) ([]edit, error) {
	if len(files) == 0 || len(files)%2 != 0 {
		return nil, fmt.Errorf("%d sections, want pairs of `-- old --` and `-- new --`", len(files))
	}
	var edits []edit
	for pair := range slices.Chunk(files, 2) {
		if pair[0].Name != "old" || pair[1].Name != "new" {
			return nil, fmt.Errorf("sections %q and %q, want `old` and `new`", pair[0].Name, pair[1].Name)
		}
		e := edit{old: pair[0].Data, new: pair[1].Data}
		if len(bytes.TrimSpace(e.old)) == 0 {
			return nil, errors.New("a section `old` is empty, so that `new` has no position")
		}
		if bytes.Equal(e.old, e.new) {
			return nil, errors.New("`old` and `new` are the same")
		}
		edits = append(edits, e)
	}
	return edits, nil
}

func (m mutant) validate() error {
	for _, header := range []struct{ key, value string }{
		{"file", m.file}, {"package", m.suite.pkg}, {"test", m.suite.test},
	} {
		if header.value == "" {
			return fmt.Errorf("the header line `%s:` is missing", header.key)
		}
	}
	if m.why == "" {
		return errors.New("describe the mistake above the header lines")
	}
	if strings.Contains(m.suite.pkg, "...") {
		return fmt.Errorf("package %q matches several; name the package whose test has to fail", m.suite.pkg)
	}
	if !filepath.IsLocal(filepath.FromSlash(m.file)) {
		return fmt.Errorf("file %q is not inside the module", m.file)
	}
	return nil
}

// apply returns the changed source file of the mutant.
func (m mutant) apply(root string) ([]byte, error) {
	src, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(m.file)))
	if err != nil {
		return nil, err
	}
	for _, e := range m.edits {
		if src, err = e.apply(src); err != nil {
			return nil, fmt.Errorf("%s: %w", m.file, err)
		}
	}
	return src, nil
}

func (e edit) apply(src []byte) ([]byte, error) {
	at := e.places(src)
	if len(at) != 1 {
		return nil, fmt.Errorf("%w: its old text occurs %d times instead of once:\n%s", errNotApplicable, len(at), e.old)
	}
	return slices.Concat(src[:at[0]], e.new, src[at[0]+len(e.old):]), nil
}

// places returns the offsets of the lines at which the old text begins.
func (e edit) places(src []byte) []int {
	var at []int
	for offset := 0; offset < len(src); {
		if bytes.HasPrefix(src[offset:], e.old) {
			at = append(at, offset)
		}
		newline := bytes.IndexByte(src[offset:], '\n')
		if newline < 0 {
			break
		}
		offset += newline + 1
	}
	return at
}
