package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/internal/headroom"
)

const (
	// firstRead is the first size of the buffer for an input of unknown size.
	firstRead = 1 << 20
	// perInput is how many times an input is in memory: as it was read, and as a payload.
	perInput = 2
)

// readInput reads the file of a verb, or standard input, if there is memory for it. The bus and the
// connector check their own limits.
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

// parseJSON returns the value of an input, which must be a single one.
func parseJSON(data []byte) (any, error) {
	v, err := readJSON(data)
	if err != nil {
		return nil, err
	}
	if v, err = numbers(v); err != nil {
		return nil, fmt.Errorf("the input has %w", err)
	}
	return v, nil
}

// readJSON is parseJSON with numbers as they are written.
func readJSON(data []byte) (v any, err error) {
	if err := checkText(data); err != nil {
		return nil, fmt.Errorf("the input is no JSON: %w", err)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	err = dec.Decode(&v)
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the input is empty: a JSON value is wanted")
	case err != nil:
		return nil, fmt.Errorf("the input is no JSON: %w", err)
	}
	if _, err = dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("the input is more than one JSON value: give them one by one")
	}
	return v, nil
}

// escapes are those of a JSON text; a pair of surrogates is one.
var escapes = regexp.MustCompile(`(?i)\\(u[d][89ab][0-9a-f]{2}\\u[d][c-f][0-9a-f]{2}|u[0-9a-f]{4}|.)`)

// checkText refuses what package json replaces: bytes that are not UTF-8, and halves of surrogate pairs.
func checkText(data []byte) error {
	for at := 0; at < len(data); {
		r, size := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && size == 1 {
			return fmt.Errorf("byte %d, %#x, is not UTF-8", at, data[at])
		}
		at += size
	}
	for _, e := range escapes.FindAll(data, -1) {
		if half, err := strconv.ParseUint(string(e[min(2, len(e)):]), 16, 16); err == nil && len(e) == 6 && utf16.IsSurrogate(rune(half)) {
			return fmt.Errorf("%s is half a character", e)
		}
	}
	return nil
}

// numbers turns the numbers of JSON into those of msgpack. Whole numbers stay whole.
func numbers(v any) (any, error) {
	var err error
	switch v := v.(type) {
	case json.Number:
		return number(v.String())
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

func number(text string) (any, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return n, nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return n, nil
	}
	if !strings.ContainsAny(text, ".eE") {
		return nil, fmt.Errorf("the number %.40s, which does not fit in 64 bits: write it as text, or, if it need not be exact, with .0 behind it", text)
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return nil, fmt.Errorf("the number %.40s, which is more than a float of 64 bits can be", text)
	}
	return f, nil
}
