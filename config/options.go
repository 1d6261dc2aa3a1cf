package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Options say what a file may reach beyond its own text, and which of its
// platforms counts. The zero value is for a file that stands alone.
type Options struct {
	// LookupEnv looks up the variable that ${NAME} stands for, and says whether
	// it is set: os.LookupEnv, for a file that may read the environment. Nil: no
	// variable is set, and a text that needs one is a problem.
	LookupEnv func(name string) (string, bool)
	// NoteUnset makes a variable that is not set a note, where a text may be anything: the file
	// is checked in another place than where it runs.
	NoteUnset bool
	// Open opens the files that base_config names, by paths that are relative
	// where that of the file is. Nil: [Load] opens those of the system, any that
	// the file names, and [Parse] none.
	Open func(path string) (io.ReadCloser, error)
	// Platform is the entry under platforms to apply; empty: none.
	Platform string
}

// Load reads and checks a file. The error is a [Problems] if the file was read
// and refused, and one of [Options.Open] if it could not be read.
func Load(path string, opts Options) (*Pipeline, error) {
	if path == "" {
		return nil, errors.New("config: the file's name is empty: give the path of a pipeline file")
	}
	if opts.Open == nil {
		opts.Open = func(path string) (io.ReadCloser, error) { return os.Open(path) }
	}
	data, err := readFile(path, opts)
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
	if root := newAssembly(c, opts).tree(data); root != nil {
		p = c.pipeline(root)
	}
	if err := c.err(); err != nil {
		return nil, err
	}
	p.Notes = c.sortedNotes()
	return p, nil
}

// readFile reads a file to its end or, for the problem that this is, to one
// byte more than is allowed.
func readFile(path string, opts Options) ([]byte, error) {
	f, err := opts.Open(path)
	if err != nil {
		return nil, err
	}
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
