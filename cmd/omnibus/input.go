package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

// readInput reads the file that a verb was given, or standard input.
func readInput(cmd *cobra.Command, args []string) (data []byte, err error) {
	switch {
	case len(args) == 0 || args[0] == "-":
		data, err = io.ReadAll(cmd.InOrStdin())
	case args[0] == "":
		err = errors.New("the file's name is empty: give its path, or - for standard input")
	default:
		data, err = os.ReadFile(args[0])
	}
	if err != nil {
		return nil, fmt.Errorf("read the input: %w", err)
	}
	return data, nil
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
