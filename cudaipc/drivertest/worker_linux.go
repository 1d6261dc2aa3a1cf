package drivertest

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// The requests to the other process.
const (
	doArena       = "make an arena"
	doImportArena = "import an arena"
	doAlloc       = "allocate"
	doImport      = "import a handle"
	doFill        = "fill"
	doCheck       = "check"
	doClose       = "close"
	doRegister    = "register memory"
	doWrite       = "write a word"
	doBreak       = "break its device"
)

var errNoBreaker = errors.New("the driver cannot have a device fail")

// worker executes requests in the other process.
type worker struct {
	driver cudaipc.Driver
	dev    cudaipc.Device
	memory []workerMemory
}

// workerMemory is memory of the other process.
type workerMemory struct {
	base  cudaipc.Ptr
	host  cudaipc.HostMemory
	close func() error // nil once it was closed
}

func newWorker(driver cudaipc.Driver, dev cudaipc.Device) *worker {
	return &worker{driver: driver, dev: dev}
}

func (w *worker) do(q request, given []int) (reply, []int) {
	defer func() {
		for _, fd := range given {
			unix.Close(fd)
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, fds, err := w.dispatch(ctx, q, given)
	if err != nil {
		return reply{Err: err.Error()}, nil
	}
	return a, fds
}

func (w *worker) dispatch(ctx context.Context, q request, given []int) (a reply, fds []int, err error) {
	switch q.Do {
	case doArena:
		arena, err := w.dev.NewArena(q.Bytes)
		if err != nil {
			return a, nil, err
		}
		a = w.add(workerMemory{base: arena.Base(), close: arena.Close})
		a.Bytes = arena.Bytes()
		return a, []int{arena.FD()}, nil
	case doImportArena:
		arena, err := w.dev.ImportArena(given[0], q.Bytes)
		if err != nil {
			return a, nil, err
		}
		return w.add(workerMemory{base: arena.Base(), close: arena.Close}), nil, nil
	case doAlloc:
		a, err = w.alloc(q)
		return a, nil, err
	case doImport:
		base, sizeBytes, err := w.dev.Import(cudaipc.Handle(q.Handle))
		if err != nil {
			return a, nil, err
		}
		a = w.add(workerMemory{base: base, close: func() error { return w.dev.Unimport(base) }})
		a.Bytes = sizeBytes
		return a, nil, nil
	case doRegister:
		a, err = w.register(given[0], int(q.Bytes))
		return a, nil, err
	default:
		return a, nil, w.onMemory(ctx, q)
	}
}

// onMemory executes a request on existing memory.
func (w *worker) onMemory(ctx context.Context, q request) error {
	if q.Do == doBreak {
		breaker, ok := w.driver.(Breaker)
		if !ok {
			return errNoBreaker
		}
		return breaker.Break(w.dev.Caps().Device, errors.New("broken for a test"))
	}
	m := &w.memory[q.Memory]
	at := m.base + cudaipc.Ptr(q.Offset)
	switch q.Do {
	case doFill:
		return fill(ctx, w.dev, at, q.Seed, q.Bytes)
	case doCheck:
		return check(ctx, w.dev, at, q.Seed, q.Bytes)
	case doWrite:
		return w.write(ctx, m.host.Word(q.Offset), q.Value)
	case doClose:
		closing := m.close
		m.close = nil
		return closing()
	default:
		return fmt.Errorf("unknown request: %s", q.Do)
	}
}

func (w *worker) alloc(q request) (a reply, err error) {
	base, err := w.dev.Alloc(q.Bytes)
	if err != nil {
		return a, err
	}
	a = w.add(workerMemory{base: base, close: func() error { return w.dev.Free(base) }})
	h, offset, err := w.dev.Export(base + cudaipc.Ptr(q.Offset))
	a.Handle, a.Offset = h[:], offset
	return a, err
}

func (w *worker) register(fd, sizeBytes int) (a reply, err error) {
	mem, err := mapPages(fd, sizeBytes, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return a, err
	}
	h, err := w.dev.RegisterHost(mem, false)
	if err != nil {
		return a, errors.Join(err, unix.Munmap(mem))
	}
	return w.add(workerMemory{base: h.Ptr(0), host: h, close: func() error { return errors.Join(h.Close(), unix.Munmap(mem)) }}), nil
}

func (w *worker) write(ctx context.Context, word cudaipc.Word, value uint32) error {
	s, err := w.dev.NewStream()
	if err != nil {
		return err
	}
	return errors.Join(s.Submit(writeOp(word, value)), s.Synchronize(ctx), s.Close())
}

func (w *worker) add(m workerMemory) reply {
	w.memory = append(w.memory, m)
	return reply{Memory: len(w.memory) - 1}
}

// close closes the remaining objects. A device that was broken may return its error.
func (w *worker) close() error {
	var errs []error
	for _, m := range w.memory {
		if m.close != nil {
			errs = append(errs, unlessSticky(m.close()))
		}
	}
	return errors.Join(append(errs, unlessSticky(w.dev.Close()), w.driver.Close())...)
}

func unlessSticky(err error) error {
	if errors.Is(err, cudaipc.ErrSticky) {
		return nil
	}
	return err
}
