package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/cuda"
	"github.com/omnibus-runtime/omnibus/internal/host/doctor"
)

// openGPUs opens the driver of the machine's GPUs. Without the build tag cuda it returns an error
// that names the tag.
func openGPUs() (cudaipc.Driver, error) { return cuda.Open(cuda.Options{}) }

// probeTimeout bounds a probe of the driver.
const probeTimeout = 30 * time.Second

// probeGPUs queries the features of the machine's GPUs, if there is a driver.
func probeGPUs(ctx context.Context, open func() (cudaipc.Driver, error)) doctor.GPUs {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	driver, err := open()
	if err != nil {
		return doctor.GPUs{Err: err}
	}
	all, err := driver.Probe(ctx)
	if err = errors.Join(err, driver.Close()); err != nil {
		return doctor.GPUs{Err: fmt.Errorf("the driver %s: %w", driver.Name(), err)}
	}
	var g doctor.GPUs
	for _, c := range all {
		g.Devices = append(g.Devices, doctor.GPU{
			ID: c.Device.String(), Name: c.Name, Driver: c.Driver, TotalBytes: c.TotalBytes, FreeBytes: c.FreeBytes, Offers: offers(c),
		})
	}
	return g
}

// offers lists the features of a GPU that lanes use.
func offers(c cudaipc.Caps) []doctor.Offer {
	offer := func(field, name string, ok bool, found, without string) doctor.Offer {
		if !ok {
			found = cmp.Or(c.Why[field], "the device has it not")
		}
		return doctor.Offer{Name: name, OK: ok, Found: found, Without: without}
	}
	const noLane = "tensors go through host memory"
	noArenas := "no pool is shared, so what an edge would send by cuda_ipc_pool goes through host memory"
	if c.Handles {
		noArenas = "pools are shared by handles, and give no memory back before they are closed"
	}
	all := []doctor.Offer{
		offer("Arenas", "arenas", c.Arenas, fmt.Sprintf("memory is shared by descriptors, in steps of %d KiB", c.GranularityBytes>>10),
			noArenas),
		offer("Handles", "handles", c.Handles, "allocations are shared by handles",
			"no allocation is shared, so what an edge would send by cuda_ipc goes through host memory"),
		offer("Words", "words", c.Words, "streams wait for words that other processes write", noLane),
		offer("RegisterHost", "host memory", c.RegisterHost, "is registered, so that copies run at full speed", "copies between host and GPU go through a buffer"),
		offer("RegisterReadOnly", "read-only host memory", c.RegisterReadOnly, "is registered", "what other processes have written is copied through a buffer"),
	}
	if c.MIG {
		all = append(all, doctor.Offer{Name: "mig", OK: true, Found: "this is a part of a GPU"})
	}
	peers := make([]string, len(c.Peers))
	for i, p := range c.Peers {
		peers[i] = p.String()
	}
	return append(all, doctor.Offer{Name: "peers", OK: true, Found: cmp.Or(strings.Join(peers, ", "), "none")})
}
