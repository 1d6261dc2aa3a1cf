package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/connector"
)

func init() { addVerb(newConnectorCmd) }

// exitNothing is the exit code of get if there is no value under the key.
const exitNothing = 3

const connectorLong = `Put a value under a key of an edge, get it, or clean it up, through any connector
that a pipeline can name: to try a connector out, to feed a stage by hand, or to
look at a value of another program.

A value that was put here outlives the command, until it is got or cleaned up, or its
time (ttl) is over.

An interrupt ends a wait with the exit code 130, SIGTERM with 143.

All verbs take the same flags for connector and value, so that the line of one verb is
valid for the others. A flag that a verb does not need has no effect.`

const connectorPutLong = `Put the contents of a file, or standard input, under a key, and print the location
as a line of JSON:

  {"ok":true,"size":N,"metadata":{...}}

With --codec raw the bytes travel as they are. Otherwise the input is a JSON
value, which travels in that encoding.`

const connectorGetLong = `Get the value under a key and write it to standard output: the bytes as they are with
--codec raw, and else as JSON. The value is gone then.

The exit code is 3 if there is no value under the key, and 1 after an error. A value
that does not decode with --codec is written as bytes, and the exit code is 1.`

const connectorCleanupLong = `Clean up the values under exactly this key, on any edge, that were not got.`

const connectorExample = `  echo '{"text": "hello"}' | omnibus connector put --from 0 --to 1 --key r1
  omnibus connector get --from 0 --to 1 --key r1
  omnibus connector get --type SharedMemoryConnector --extra '{"mode": "segment"}' \
      --from 0 --to 1 --key r1 --codec omni --wait 5s`

// A connecting has the flags of the verbs of connector.
type connecting struct {
	at         finder
	typ, extra string
	edge       connector.Edge
	key, meta  string
	codec      *choice
	wait       time.Duration
}

func newConnectorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "connector",
		Short:   "Put and get values through a connector",
		Long:    connectorLong,
		Example: connectorExample,
		Args:    knownVerb,
		RunE:    func(*cobra.Command, []string) error { return &usageError{"put, get, cleanup or health?"} },

		SuggestionsMinimumDistance: 2,
	}
	cmd.AddCommand(newConnectorPutCmd(), newConnectorGetCmd(), newConnectorCleanupCmd(), newConnectorHealthCmd())
	return cmd
}

// verb adds the flags of all verbs to a command, some of them required.
func (c *connecting) verb(cmd *cobra.Command, needs ...string) *cobra.Command {
	c.at.addTo(cmd)
	cmd.Flags().StringVar(&c.typ, "type", "SharedMemoryConnector", "the connector's `TYPE`")
	cmd.Flags().StringVar(&c.extra, "extra", "{}", "its settings, as `JSON`")
	cmd.Flags().StringVar(&c.edge.From, "from", "", "the stage that puts")
	cmd.Flags().StringVar(&c.edge.To, "to", "", "the stage that gets")
	cmd.Flags().StringVar(&c.key, "key", "", "the value's key")
	cmd.Flags().StringVar(&c.meta, "meta", "null", "for get, the metadata of the put, as `JSON`")
	c.codec = newChoice("json", "msgpack", "omni", "raw")
	cmd.Flags().Var(c.codec, "codec", "how the value travels")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		for _, flag := range needs {
			if cmd.Flag(flag).Value.String() == "" {
				return &usageError{fmt.Sprintf("--%s is missing", flag)}
			}
		}
		return nil
	}
	return cmd
}

func newConnectorPutCmd() *cobra.Command {
	c := &connecting{}
	return c.verb(&cobra.Command{
		Use:   "put --from A --to B --key K [FILE|-]",
		Short: "Put a value under a key",
		Long:  connectorPutLong,
		Args:  upToOne("file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := c.settings(); err != nil { // before the user has typed the value
				return err
			}
			data, err := readInput(cmd, args)
			if err != nil {
				return err
			}
			value, err := c.parse(data)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, con *connector.Connector) error {
				size, meta, err := con.Put(ctx, c.edge, c.key, value)
				if err != nil {
					return err
				}
				if err := json.NewEncoder(cmd.OutOrStdout()).Encode(putResult{true, size, meta}); err != nil {
					return fmt.Errorf("%w: the value was put, and its metadata are lost", err)
				}
				return nil
			})
		},
	}, "from", "to", "key")
}

// putResult is what put prints.
type putResult struct {
	OK       bool               `json:"ok"`
	Size     int                `json:"size"`
	Metadata connector.Metadata `json:"metadata"`
}

func newConnectorGetCmd() *cobra.Command {
	c := &connecting{}
	cmd := c.verb(&cobra.Command{
		Use:   "get --from A --to B --key K",
		Short: "Get the value under a key",
		Long:  connectorGetLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			meta, err := parseObject[connector.Metadata]("meta", c.meta)
			if err != nil {
				return err
			}
			return c.with(cmd, func(ctx context.Context, con *connector.Connector) error {
				return c.get(ctx, con, meta, cmd.OutOrStdout())
			})
		},
	}, "from", "to", "key")
	cmd.Flags().Var((*span)(&c.wait), "wait", "wait this long for the value (default not at all)")
	return cmd
}

func (c *connecting) get(ctx context.Context, con *connector.Connector, meta connector.Metadata, out io.Writer) error {
	get := con.Get
	if c.wait > 0 {
		waiting, cancel := context.WithTimeout(ctx, c.wait)
		defer cancel()
		ctx, get = waiting, con.Await
	}
	v, err := get(ctx, c.edge, c.key, meta)
	switch {
	case errors.Is(err, connector.ErrNotFound):
		return &exitError{exitNothing, err}
	case c.wait > 0 && errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, connector.ErrBusy): // which something is
		return &exitError{exitNothing, because(err, fmt.Errorf("nothing came within %v", c.wait))}
	case err != nil:
		return err
	}
	defer v.Release()
	return c.print(v, out)
}

func newConnectorCleanupCmd() *cobra.Command {
	c := &connecting{}
	return c.verb(&cobra.Command{
		Use:   "cleanup --key K",
		Short: "Clean up values that were not got",
		Long:  connectorCleanupLong,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd, func(ctx context.Context, con *connector.Connector) error { return con.Cleanup(ctx, c.key) })
		},
	}, "key")
}

func newConnectorHealthCmd() *cobra.Command {
	c := &connecting{}
	return c.verb(&cobra.Command{
		Use:   "health",
		Short: "See whether a connector can be opened here",
		Long:  "Open a connector, and print how it does. Its counters begin with the command.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return c.with(cmd, func(_ context.Context, con *connector.Connector) error {
				return writeJSON(cmd.OutOrStdout(), con.Health())
			})
		},
	})
}

// settings checks the type of the connector and its settings, and returns these.
func (c *connecting) settings() (map[string]any, error) {
	extra, err := parseObject[map[string]any]("extra", c.extra)
	if err != nil {
		return nil, err
	}
	t, err := connectorTypes().Type(c.typ)
	if err != nil {
		return nil, err
	}
	if _, err := t.Settings(extra); err != nil {
		return nil, fmt.Errorf("open %s: %w", c.typ, err)
	}
	return extra, nil
}

// with opens the connector for a step.
func (c *connecting) with(cmd *cobra.Command, step func(context.Context, *connector.Connector) error) (err error) {
	extra, err := c.settings()
	if err != nil {
		return err
	}
	ctx, stop := interruptible(cmd.Context())
	defer stop()
	defer func() { err = interrupted(ctx, because(err, context.Cause(ctx))) }()
	exchange := &joining{ctx: ctx, at: c.at, name: cmd.CommandPath()}
	defer exchange.leave()
	con, err := connectorTypes().Open(ctx, c.typ, connector.Options{
		Extra: extra, Serializer: serializers[c.codec.word], Exchange: exchange, Lasting: true,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, con.Close()) }()
	return step(ctx, con)
}

// because replaces the error of an ended context by its cause; nil stays nil.
func because(err, why error) error {
	var failed *connector.Error
	over := errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
	if why == nil || !over || !errors.As(err, &failed) {
		return err
	}
	told := *failed
	told.Err = why
	return &told
}

// parse turns the input into the value that is put.
func (c *connecting) parse(data []byte) (any, error) {
	if c.codec.word == "raw" {
		return data, nil
	}
	if c.codec.word != "json" {
		return parseJSON(data)
	}
	if _, err := readJSON(data); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	if err := json.Compact(&text, data); err != nil {
		return nil, err
	}
	return text.Bytes(), nil
}
