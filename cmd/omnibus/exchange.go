package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/config"
)

func init() { addVerb(newExchangeCmd) }

const exchangeLong = `Keep values under keys for the processes of this machine, and run no pipeline.

It is the exchange of a host (omnibus run), as a service: processes that attach put values
under keys and get them, in shared memory. Python's OmnibusConnector, with which vLLM-Omni's
processes exchange values, finds it by its name, and so does omnibus connector.

A value stays until a process gets it, the process that put it takes it back or ends, or the
time that --ttl gives is over. When the exchange ends, by an interrupt, SIGTERM or omnibus
drain, all values go with it.

The line "ready: ..." on standard error says where the exchange listens. The exit code is 0
when it was asked to end, 1 when something failed, and 2 when its settings are wrong.`

const exchangeExample = `  omnibus exchange
  omnibus exchange --name talk --ttl 5m --http 127.0.0.1:9464
  omnibus exchange --socket /run/omnibus/exchange.sock --allow-uid 1001`

func newExchangeCmd() *cobra.Command {
	var flags hostFlags
	var uids []uint
	p := &config.Pipeline{File: "omnibus exchange"}
	cmd := &cobra.Command{
		Use:     "exchange",
		Short:   "Keep values under keys, without a pipeline",
		Long:    exchangeLong,
		Example: exchangeExample,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if p.Bus.AllowUIDs, err = users(uids); err != nil {
				return err
			}
			if err := config.CheckName(p.Name); err != nil {
				return &usageError{"--name: " + err.Error()}
			}
			opts := flags.options(cmd)
			opts.Pipeline = p
			return runHost(cmd, opts)
		},
	}
	flags.add(cmd, "")
	cmd.Flags().StringVar(&p.Name, "name", "exchange", "the `NAME` by which processes find it")
	cmd.Flags().Var((*span)(&p.Bus.ExchangeTTL), "ttl", "how long a value waits for the process that gets it (default: as long as the process that put it lives)")
	cmd.Flags().UintSliceVar(&uids, "allow-uid", nil, "let processes of the user `UID` attach too, beside the own")
	return cmd
}
