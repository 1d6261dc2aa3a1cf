package load

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
)

// A gated cell detects a request that waits for more than its own work. The slow stage blocks with each
// delivery until other requests have ended at their callers. Where requests choose between two stages,
// these are all requests that go only to the quick one; otherwise the requests whose deliveries the slow
// stage handled last. The cell hangs if one of these requests waits for the slow stage to continue.
//
// A gate is a pipe in the folder of the cell: opening it for reading waits until the test has opened it
// for writing. On another pipe the slow stage reports that it blocks. In a cell that has to hang, the
// callers get the plans of quick requests after that report.

// gateName is the name of the gate of a request.
func gateName(number int) string { return fmt.Sprintf("gate-%d", number) }

const (
	gateOfQuick = "gate" // of all quick requests together
	blockedPipe = "standing"
)

// slowStage is the stage that is slow, or blocks; "": none.
func (c *cell) slowStage() string {
	switch {
	case c[dimPace] == paceEven:
		return ""
	case c[dimPace] == paceSlowFirst:
		return stageFirst
	case c.routed():
		return stageImage
	}
	return stageSecond
}

// blockedRequests is how many requests of a gated cell block until all quick ones have ended: as many
// as have slots at the slow stage, and leave permits and callers to the quick ones.
func (c *cell) blockedRequests() int {
	replicas, inflight := c.slots()
	return min(replicas*inflight, c.permits()/2)
}

// gated has a stage handle deliveries, after its gates are open.
func (w *work) gated(handle func() error, all ...*bus.Delivery) error {
	if w.cell[dimPace] != paceGated || w.stage != w.cell.slowStage() {
		return handle()
	}
	var now []string
	for _, d := range all {
		if !d.Bare() {
			h, err := headerOf(d)
			if err != nil {
				return err
			}
			now = append(now, gateName(numberOf(h.tag)))
		}
	}
	gates := []string{gateOfQuick}
	if w.cell.branches() == nil {
		gates = nil
		if handled := w.handled.Load(); handled != nil {
			gates = *handled
		}
	} else if err := os.WriteFile(filepath.Join(os.Getenv(dirEnv), blockedPipe), []byte{1}, 0); err != nil {
		return err
	}
	for _, name := range gates {
		if err := awaitGate(name); err != nil {
			return err
		}
	}
	err := handle()
	w.handled.Store(&now)
	return err
}

func awaitGate(name string) error {
	f, err := os.Open(filepath.Join(os.Getenv(dirEnv), name))
	if err != nil {
		return err
	}
	return f.Close()
}

// makeGates makes the gates of the cell.
func (r *run) makeGates() error {
	switch {
	case r.cell[dimPace] != paceGated:
		return nil
	case r.cell.branches() != nil:
		return errors.Join(unix.Mkfifo(filepath.Join(r.dir, gateOfQuick), 0o600), r.watchBlocked())
	}
	for i := range r.checker.plans {
		if err := unix.Mkfifo(filepath.Join(r.dir, gateName(i)), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// watchBlocked has r.stageBlocked closed when the slow stage blocks.
func (r *run) watchBlocked() error {
	path := filepath.Join(r.dir, blockedPipe)
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return err
	}
	pipe, err := os.OpenFile(path, os.O_RDWR, 0) // so that no writer waits for a reader
	if err != nil {
		return err
	}
	r.gates = append(r.gates, pipe)
	standing := make(chan struct{})
	r.stageBlocked = standing
	go func() {
		if _, err := pipe.Read(make([]byte, 1)); err == nil {
			close(standing)
		}
	}()
	return nil
}

// openGates opens the gate that the end of a request opens, if there is one.
func (r *run) openGates(number int) error {
	name := gateName(number)
	switch k := r.checker; {
	case r.cell[dimPace] != paceGated:
		return nil
	case r.cell.branches() != nil:
		if !k.plans[number].quick() || k.quickLeft > 0 {
			return nil
		}
		name = gateOfQuick
	}
	gate, err := os.OpenFile(filepath.Join(r.dir, name), os.O_RDWR, 0) // does not wait for a reader
	if err == nil {
		r.gates = append(r.gates, gate)
	}
	return err
}
