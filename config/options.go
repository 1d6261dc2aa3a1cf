package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Options say what a file may reach beyond its own text. The zero value is for
// a file that stands alone.
type Options struct {
	// LookupEnv looks up the variable that ${NAME} stands for, and says whether
	// it is set: os.LookupEnv, for a file that may read the environment. Nil: no
	// variable is set, and a text that needs one is a problem.
	LookupEnv func(name string) (string, bool)
}

// Load reads and checks a file. The error is a [Problems] if the file was read
// and refused, and one of package os if it could not be read.
func Load(path string, opts Options) (*Pipeline, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	data, err := readAll(f)
	if err != nil {
		return nil, fmt.Errorf("config: %w", err)
	}
	return Parse(path, data, opts)
}

// Parse checks the text of a file. The name stands in the problems and notes;
// if it ends in .json the text must be JSON. The error is a [Problems].
func Parse(name string, data []byte, opts Options) (*Pipeline, error) {
	c := &checker{file: name}
	var p *Pipeline
	if root := c.parse(data); root != nil {
		x := &expander{checker: c, lookup: opts.LookupEnv, done: make(map[*node]bool)}
		if x.node(root); !x.full {
			p = c.pipeline(root)
		}
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	p.Notes = c.sortedNotes()
	return p, nil
}

// readAll reads a file to its end or, for the problem that this is, to one byte
// more than is allowed, and closes it.
func readAll(f io.ReadCloser) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(f, MaxFileBytes+1))
	return data, errors.Join(err, f.Close())
}

// Path makes a path of the file absolute: relative ones start at the folder
// that the file is in, also those that it took from another with base_config.
func (p *Pipeline) Path(path string) (string, error) {
	if !filepath.IsAbs(path) {
		path = filepath.Join(filepath.Dir(p.File), path)
	}
	return filepath.Abs(path)
}
