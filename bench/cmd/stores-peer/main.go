// Command stores-peer is the Go side of bench/stores.py. Each line of its standard input orders puts or gets of values
// through a bridge, and its answer is the time in seconds.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/omnibus-runtime/omnibus/codec/omni"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/bridge"
)

var edge = connector.Edge{From: "0", To: "1"}

func main() {
	if err := serve(os.Args[1], os.Args[2], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(typ, extra string, in io.Reader, out io.Writer) error {
	types := new(connector.Registry)
	for _, t := range bridge.Types() {
		if err := types.Register(t); err != nil {
			return fmt.Errorf("register: %w", err)
		}
	}
	opts := connector.Options{Serializer: omni.Serializer{}}
	if err := json.Unmarshal([]byte(extra), &opts.Extra); err != nil {
		return fmt.Errorf("the settings: %w", err)
	}
	c, err := types.Open(context.Background(), typ, opts)
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	return errors.Join(answer(c, in, out), c.Close())
}

func answer(c *connector.Connector, in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var q struct {
			Op, Key string
			Size, N int
		}
		if err := json.Unmarshal(lines.Bytes(), &q); err != nil {
			return fmt.Errorf("a question: %w", err)
		}
		value := map[string]any{"request_id": q.Key, "data": make([]byte, q.Size)}
		begin := time.Now()
		for i := range q.N {
			if err := transfer(c, q.Op, fmt.Sprintf("%s_%d", q.Key, i), value); err != nil {
				return err
			}
		}
		fmt.Fprintln(out, time.Since(begin).Seconds())
	}
	return lines.Err() //nolint:wrapcheck // of standard input
}

func transfer(c *connector.Connector, op, key string, value map[string]any) error {
	if op == "put" {
		_, _, err := c.Put(context.Background(), edge, key, value)
		return err //nolint:wrapcheck // it says all
	}
	got, err := c.Get(context.Background(), edge, key, nil)
	if err != nil {
		return err //nolint:wrapcheck // it says all
	}
	defer got.Release()
	var v map[string]any
	if err := got.Decode(&v); err != nil {
		return err //nolint:wrapcheck // it says all
	}
	if data, ok := v["data"].([]byte); !ok || len(data) != len(value["data"].([]byte)) { //nolint:forcetypeassert // made above
		return errors.New("the value differs from the one that was put")
	}
	return nil
}
