package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/omnibus-runtime/omnibus/bench"
)

const gpuLong = `Measure tensors that go to another process in the memory of a GPU, beside raw
copies of the same size in the same run:

  gpu/ordering    tensors that were read before they were complete, or overwritten
                  before they were read, with streams that are 200 ms late; and
                  mistakes made on purpose that were not detected
  gpu/in          into the pool; beside a copy on the GPU
  gpu/view        into the pool, and mapped by the other process; beside a copy
  gpu/in+out      into the pool, and copied out by the other process; beside two
  gpu/spill       through host memory; beside copies there and back through memory
                  that is registered with the GPU
  gpu/latency     4 KiB, from the call that sends it to when the stream of the
                  other process begins behind it, and to its answer, with processes
                  that spin, or wait parked
  gpu/leases      a million of 4 KiB through the pool (fewer with --quick, or when they
                  take more than 30 s), and the growth afterwards, of both processes, of
                  descriptors, shared mappings, streams and events, chunks in use,
                  memory of the GPU, Go's heap, and memory
  gpu/reclaim     processes that are killed while they hold all chunks of a pool (100, 20
                  with --quick): the time until they are dead, and from there until all
                  chunks are in use again

With --driver emul the GPU is emulated in shared memory. The figures then show the
cost of the protocol and not that of GPUs, and speeds have no targets. The targets of
speeds are for an H200. The largest tensors that go through host memory need a larger
--store-bytes. A missed target is no failure.`

func newGPUCmd() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gpu",
		Short: "Measure tensors on a GPU against raw copies",
		Long:  gpuLong,
	}
	var lines string
	m := measurement[bench.Report]{names: bench.NamesGPU, run: bench.RunGPU}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return m.measure(cmd, func(r bench.Report) error {
			err := r.WriteText(cmd.OutOrStdout())
			if lines != "" {
				err = errors.Join(err, appendLines(lines, r))
			}
			return err
		})
	}
	m.flags(cmd)
	cmd.Flags().StringVar(&m.opts.Driver, "driver", bench.DriverEmul, "the GPU's: `emul|cuda`")
	cmd.Flags().BoolVar(&m.opts.Quick, "quick", false, "measure fewer rounds, for a first impression")
	cmd.Flags().StringVar(&lines, "lines", "", "also append each figure to `FILE`, as a line of JSON")
	cmd.Flags().Int64Var(&m.opts.StoreBytes, "store-bytes", bench.DefaultStoreBytes, "size `N` of the largest stores")
	cmd.AddCommand(newGPUProducerCmd())
	return cmd
}

// newGPUProducerCmd is the other process of scripts/gpu_torch.py.
func newGPUProducerCmd() *cobra.Command {
	var p bench.GPUProducer
	cmd := &cobra.Command{
		Use:    "producer FOLDER",
		Short:  "Put tensors on a GPU into tensor queues whose sockets are in a folder",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// An interrupt typed at the terminal is for the process that measures.
			signal.Ignore(os.Interrupt)
			p.Folder = args[0]
			return p.Run(cmd.Context(), cmd.InOrStdin(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().StringVar(&p.Driver, "driver", bench.DriverEmul, "the GPU's: `emul|cuda`")
	cmd.Flags().Int64Var(&p.LargestBytes, "largest", 16<<20, "size `N` of the largest tensors, of which the pool holds a few")
	return cmd
}

// appendLines adds each figure of a report to a file, as a line of JSON.
func appendLines(name string, report bench.Report) (err error) {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	e := json.NewEncoder(f)
	for _, r := range report.Results {
		if err := e.Encode(r); err != nil {
			return err
		}
	}
	return nil
}
