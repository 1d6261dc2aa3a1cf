package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

const ipcLong = `Measure what it costs to hand a payload to another process, beside a Unix
stream socket in the same run:

  ipc/round-trip   a payload there and one of the same size back, every line of
                   which is read; the times are of both ways together
  ipc/one-way      payloads there, until the last was read
      lane-*       in the frames of a lane: what a bus does with small payloads
      handle-*     in a store, with handles in a lane, waiting by parking, by the
                   default ladder, or by spinning on a processor for each side
      floor-*      64 B and 1 MiB there and back in shared memory without any
                   protocol, with a flag or an event: what the machine can do
      bus          from one node of a bus to a stage of another, past the host
      bus-host     from the process that hosts a bus to a stage in another
      packets      through a socket that keeps message bounds
      shmipc       through shared memory, by github.com/cloudwego/shmipc-go
  ipc/hand-over    what is in the store already, beside 64 bytes: 64 MiB of which
                   the ends are read, or every page
  ipc/python       1 MiB to a stage in Python and back, which copies it or passes
                   it on, beside Python's multiprocessing.Queue

The command runs itself as the other process. All sides take turns, in slices of
some milliseconds, and the best of each count. Ratios with an x say how many times
as fast as the baseline a figure is; their targets are lower bounds. Quartiles are
those of single turns. It takes a minute, and 2 GiB of memory; --store-bytes
67108864 leaves out what needs so much. A missed target is no failure.`

func newIPCCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ipc",
		Short: "Measure payloads between processes against sockets",
		Long:  ipcLong,
	}
	measures(cmd, bench.RunIPC, bench.NamesIPC)
	return cmd
}
