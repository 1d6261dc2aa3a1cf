package main

import (
	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

const connectorLong = `Measure what it takes to hand a value of one array to another process through a
connector, until that has got, decoded and added up all of it, beside what
vLLM-Omni's own SharedMemoryConnector takes in the same run:

  reference        two Python processes with vLLM-Omni's SharedMemoryConnector,
                   where the environment variable OMNIBUS_VLLM_OMNI names a
                   directory that has it
  stand-in         elsewhere, in its place: the same steps, written anew
  python-ring      two Python processes with OmnibusConnector in mode ring, of
                   which this process is the host
  python-segment   the same in mode segment
  go-ring          two Go processes with SharedMemoryConnector in mode ring, of
                   which the one that puts is the host
  go-ring-nodes    the same, but this process is the host
  go-floor         memory that both have, without any connector: what the machine
                   can do
  go-segment       two Go processes in mode segment
  *-bare           a file in /dev/shm that is written, read and removed
  *-to-bare        a segment, beside that

The environment variable OMNIBUS_PYTHON names the Python, which needs NumPy for
figures that mean anything, and msgspec for the reference. All means take turns, in
slices of some milliseconds, and the best of each count. Ratios with an x say how
many times as fast as the reference a figure is; their targets are lower bounds.
Quartiles are those of single turns. A missed target is no failure.`

func newConnectorCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "connector",
		Short: "Measure connectors against vLLM-Omni's",
		Long:  connectorLong,
	}
	measures(cmd, bench.RunConnector, bench.NamesConnector)
	return cmd
}
