package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const (
	// firstRead is what the buffer for an input of unknown size begins with.
	firstRead = 1 << 20
	// perInput is how many times an input is in memory: as it was read, and as a payload.
	perInput = 2
)

// readInput reads the file that a verb was given, or standard input, as far as there
// is memory for it. What the bus or the connector takes is for them to say.
func readInput(cmd *cobra.Command, args []string) (data []byte, err error) {
	switch {
	case len(args) == 0 || args[0] == "-":
		data, err = readWhole(cmd.InOrStdin(), headroom.System())
	case args[0] == "":
		err = errors.New("the file's name is empty: give its path, or - for standard input")
	default:
		data, err = readFile(args[0])
	}
	if err != nil {
		return nil, fmt.Errorf("read the input: %w", err)
	}
	return data, nil
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return readWhole(f, headroom.System())
}

// readWhole reads until the end. A file that is too large is refused before it is read.
func readWhole(from io.Reader, memory headroom.Probe) ([]byte, error) {
	var data []byte
	size := int64(firstRead)
	if f, ok := from.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			size = max(size, info.Size()+1) // so that the end is seen in the same round
		}
	}
	for {
		if short := memory.Check(perInput * uint64(size)); short != nil {
			return nil, fmt.Errorf("it has %d bytes or more, which takes %d of memory to pass on, and %s leaves %d, of which %d stay free: "+
				"give it in pieces, or raise that limit", size, short.NeededBytes, short.Limit, short.AvailableBytes, short.KeepBytes)
		}
		data = slices.Grow(data, int(size)-len(data))
		for len(data) < cap(data) {
			n, err := from.Read(data[len(data):cap(data)])
			data = data[:len(data)+n]
			switch {
			case errors.Is(err, io.EOF):
				return data, nil
			case err != nil:
				return nil, err
			}
		}
		size = int64(len(data)) + int64(len(data))/4
	}
}

// parseJSON returns the one value that the input is.
func parseJSON(data []byte) (any, error) {
	var v any
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber() // whole numbers stay whole
	err := dec.Decode(&v)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the input is empty: a JSON value is wanted")
	case err != nil:
		return nil, fmt.Errorf("the input is no JSON: %w", err)
	}
	if _, err = dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the input is more than one JSON value: give them one by one")
	}
	return numbers(v)
}

// numbers turns the numbers of JSON into those of msgpack.
func numbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n, nil
		}
		f, err := v.Float64()
		if err != nil {
			return nil, fmt.Errorf("the number %v in the input: %w", v, err)
		}
		return f, nil
	case []any:
		for i := range v {
			if v[i], err = numbers(v[i]); err != nil {
				return nil, err
			}
		}
	case map[string]any:
		for k := range v {
			if v[k], err = numbers(v[k]); err != nil {
				return nil, err
			}
		}
	}
	return v, nil
}
