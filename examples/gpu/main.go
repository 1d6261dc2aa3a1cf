// Command gpu sends tensors in the memory of a GPU through three stages: make fills
// them, turn swaps the halves of their rows, sum compares their checksums. Another
// process serves turn. Without a GPU the program uses an emulated one.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

type options struct {
	driver    string
	transport string
	tensors   int
	rows      int
	socket    string // of the host; set in the other process
	rest      []string
	out       io.Writer
	open      func(driver string) (cudaipc.Driver, error)
}

func main() {
	o := options{out: os.Stdout, open: openDriver}
	flag.StringVar(&o.driver, "driver", "", "emul or cuda; default cuda where there is a GPU")
	flag.StringVar(&o.transport, "transport", "cuda_ipc_pool", "how tensors travel: default, cuda_ipc or cuda_ipc_pool")
	flag.IntVar(&o.tensors, "n", 16, "how many tensors are sent")
	flag.IntVar(&o.rows, "rows", 1024, "how many rows each has, of 4 KiB")
	flag.StringVar(&o.socket, "join", "", "be the other process of the host at this socket")
	flag.Parse()
	o.rest = flag.Args()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	run := serve
	if o.socket != "" {
		run = join
	}
	err := run(ctx, o)
	stop()
	if err != nil {
		log.Fatal(err)
	}
}

// serve runs the pipeline, and starts this program again for the stage turn.
func serve(ctx context.Context, o options) (err error) {
	transport, err := bus.ParseTensorTransport(o.transport)
	if err != nil {
		return err
	}
	g, err := openGPU(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	first, last := g.stage(), g.stage()
	dir, err := os.MkdirTemp("", "omnibus-gpu")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	b, err := bus.Open(ctx, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "make", Handle: first.fill}, {Name: "turn", Remote: &bus.Remote{}}, {Name: "sum", Handle: last.sum}},
		Edges:  []bus.Edge{{From: "make", To: "turn", Tensors: transport}, {From: "turn", To: "sum", Tensors: transport}},
	}, bus.Options{
		Store: shmstore.Options{ArenaBytes: storeBytes(o), Memory: shmstore.Shared}, MaxRequests: 1, GPU: g.options(),
		Logger: slog.Default(), // it logs why tensors travel another way than requested
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.Close(context.WithoutCancel(ctx))) }()
	socket := filepath.Join(dir, "socket")
	server, err := host.Listen(b, socket, host.ListenOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close(context.WithoutCancel(ctx))) }()
	end, err := startOther("-join", socket, "-driver", g.driver.Name(), "-rows", fmt.Sprint(o.rows))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	r, err := b.Submit(ctx, o.tensors)
	if err != nil {
		return err
	}
	how := make(map[string]int)
	for d, err := range r.Results(ctx) {
		if err != nil {
			return err
		}
		how[string(d.Bytes())]++
	}
	fmt.Fprintf(o.out, "%s: tensors of %d KiB by %v, as they came: %v\n", g.dev.Caps().Name, o.rows*rowBytes>>10, transport, how)
	return nil
}
