package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

const peersLong = `Measure omnibus beside others that carry messages between processes, and print
one table: a row for each kind of work, in µs a message, and in brackets how many
times as much omnibus takes.

  request       one message there and one back, each a request of its own, some at
                a time
  stream        payloads there and back, one after the other
  one-way       payloads there, until the last was read
  fan-out       the same to several processes, which all read every payload
  chain         through several processes, each of which reads what it gets and
                sends as much on; one payload at a time
  python        payloads there and back between two processes in Python
  in-process    messages of 64 B through four stages that copy them: in a stream, and
                one request after the other
  idle-memory   what the host, or the server, has of its own with processes attached

Each side has processes of its own; every byte of a payload is read there, and of an
answer here. Omnibus has a caller, a host and its stages, as nodes; with host-calls
the caller is the host. Its peers:

  unix          stream sockets; relayed: a process between the two copies from one to
                the other
  grpc          through a Unix socket: calls for requests, a stream otherwise;
                relayed: a server between the two, which calls the other
  nats          through a NATS server, by TCP: requests with replies, or subjects
  zmq           pairs of sockets, where OMNIBUS_PYTHON has zmq
  mp.Queue      Python's multiprocessing.Queue
  channels      goroutines with channels
  protoactor    actors of protoactor-go, with its own mailboxes

They take turns, a slice each in a round. Figures are medians of the rounds; the factor
is the median of the rounds' own.`

func newPeersCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "peers",
		Short: "Measure omnibus against gRPC, NATS, sockets and others",
		Long:  peersLong,
	}
	var c common
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return measure(cmd, &c, bench.NamesPeers, bench.RunPeers, func(bench.PeerReport) error { return nil })
	}
	c.flags(cmd)
	cmd.Flags().IntVar(&c.opts.Rounds, "rounds", bench.DefaultRounds, "measure each side `N` times")
	cmd.Flags().DurationVar(&c.opts.Slice, "slice", bench.DefaultSlice, "measure each side for this `TIME` in a round")
	return cmd
}
