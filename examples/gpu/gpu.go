package main

import (
	"errors"
	"fmt"
	"log"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/cuda"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const (
	columns  = 1024
	rowBytes = 4 * columns // of float32
)

// gpu is the GPU of a process. The lane of its bus, or node, uses the same driver.
type gpu struct {
	driver cudaipc.Driver
	dev    cudaipc.Device
	rows   int
	stages [2]stage
	taken  int
}

// stage is the state of a stage: a stream, and host memory that it copies to and
// from.
type stage struct {
	*gpu
	stream cudaipc.Stream
	memory *shmstore.Segment
	host   cudaipc.HostMemory
	buffer []byte // the memory of host
}

// openDriver opens a driver by its name. Without a name it opens the driver of the
// machine's GPUs, or the emulated one where there is no GPU.
func openDriver(name string) (cudaipc.Driver, error) {
	switch name {
	case "", "cuda":
		driver, err := cuda.Open(cuda.Options{})
		if err == nil || name != "" {
			return driver, err
		}
		log.Print("an emulated GPU stands in: ", err)
		fallthrough
	case "emul":
		return emul.New(emul.Options{})
	}
	return nil, fmt.Errorf("there is no driver %q: use emul or cuda", name)
}

func openGPU(o options) (g *gpu, err error) {
	g = &gpu{rows: o.rows}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	switch {
	case len(o.rest) > 0:
		return g, fmt.Errorf("there are only flags, not %q", o.rest)
	case o.tensors < 1:
		return g, fmt.Errorf("%d tensors: send at least one", o.tensors)
	case o.rows < 1:
		return g, fmt.Errorf("tensors of %d rows: use at least one", o.rows)
	}
	if g.driver, err = o.open(o.driver); err != nil {
		return g, err
	}
	if g.dev, err = g.driver.Open(cudaipc.UUID{}); err != nil {
		return g, err
	}
	for i := range g.stages {
		if err := g.stages[i].open(g); err != nil {
			return g, err
		}
	}
	return g, nil
}

func (s *stage) open(g *gpu) (err error) {
	s.gpu = g
	if s.stream, err = g.dev.NewStream(); err != nil {
		return err
	}
	if s.memory, err = shmstore.NewSegment("gpu-example", g.bytes()); err != nil {
		return err
	}
	s.buffer = s.memory.Bytes()
	s.host, err = g.dev.RegisterHost(s.buffer, false)
	return err
}

// stage makes the state of one of the process's two stages.
func (g *gpu) stage() *stage {
	g.taken++
	return &g.stages[g.taken-1]
}

func (g *gpu) bytes() int64 { return int64(g.rows) * rowBytes }

// storeBytes is the size of a store with space for some tensors, which travel through
// it by default.
func storeBytes(o options) int64 { return max(64<<20, 32*int64(o.rows)*rowBytes) }

// options returns the options of the bus, or of a node of it.
func (g *gpu) options() *bus.GPUOptions {
	return &bus.GPUOptions{Lane: lane.Options{Driver: g.driver}}
}

// tensor makes a tensor on the GPU.
func (g *gpu) tensor() (*lane.Tensor, error) {
	p, err := g.dev.Alloc(g.bytes())
	return &lane.Tensor{DType: codec.DTypeFloat32, Shape: []int{g.rows, columns}, Ptr: p}, err
}

// free is for release functions: it may wait for the GPU.
func (g *gpu) free(t *lane.Tensor) { _ = g.dev.Free(t.Ptr) } // fails only if the GPU has failed

// close closes the streams and memory first, then the device and the driver.
func (g *gpu) close() error {
	var errs []error
	for i := range g.stages {
		errs = append(errs, g.stages[i].close())
	}
	if g.dev != nil {
		errs = append(errs, g.dev.Close())
	}
	if g.driver != nil {
		errs = append(errs, g.driver.Close())
	}
	return errors.Join(errs...)
}

func (s *stage) close() error {
	var errs []error
	if s.host != nil {
		errs = append(errs, s.host.Close())
	}
	if s.memory != nil {
		s.memory.Close()
	}
	if s.stream != nil {
		errs = append(errs, s.stream.Close())
	}
	return errors.Join(errs...)
}
