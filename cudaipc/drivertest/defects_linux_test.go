package drivertest_test

import (
	"context"
	"errors"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// without drops operations of a kind.
func without(kind cudaipc.OpKind) func([]cudaipc.Op) []cudaipc.Op {
	return func(ops []cudaipc.Op) []cudaipc.Op {
		return slices.DeleteFunc(slices.Clone(ops), func(op cudaipc.Op) bool { return op.Kind == kind })
	}
}

// first moves operations of a kind before the others.
func first(kind cudaipc.OpKind) func([]cudaipc.Op) []cudaipc.Op {
	return func(ops []cudaipc.Op) []cudaipc.Op {
		ops = slices.Clone(ops)
		slices.SortStableFunc(ops, func(a, b cudaipc.Op) int {
			switch {
			case a.Kind == kind && b.Kind != kind:
				return -1
			case a.Kind != kind && b.Kind == kind:
				return 1
			default:
				return 0
			}
		})
		return ops
	}
}

// changed changes operations of a kind.
func changed(kind cudaipc.OpKind, change func(*cudaipc.Op)) func([]cudaipc.Op) []cudaipc.Op {
	return func(ops []cudaipc.Op) []cudaipc.Op {
		ops = slices.Clone(ops)
		for i := range ops {
			if ops[i].Kind == kind {
				change(&ops[i])
			}
		}
		return ops
	}
}

// on makes a defect of a device.
func on[D cudaipc.Device](seenBy string, wrap func(cudaipc.Device) D) defect {
	return defect{seenBy: seenBy, device: func(v cudaipc.Device) cudaipc.Device { return wrap(v) }}
}

var defects = map[string]defect{
	"a field has no reason": {seenBy: "probe", probe: func(all []cudaipc.Caps) { all[0].Words = false }},
	"a device is nameless":  {seenBy: "probe", probe: func(all []cudaipc.Caps) { all[0].Device = cudaipc.UUID{} }},

	"writes overtake":         {seenBy: "write_behind_a_copy", submit: first(cudaipc.OpWrite)},
	"writes get lost":         {seenBy: "wait_holds_back", submit: without(cudaipc.OpWrite)},
	"waits are not waited":    {seenBy: "wait_holds_back", submit: without(cudaipc.OpWait)},
	"the last copy gets lost": {seenBy: "copies", submit: without(cudaipc.OpCopy)},
	"waiting is for another value": {seenBy: "words_in_a_circle", submit: changed(cudaipc.OpWait, func(op *cudaipc.Op) {
		op.Value--
	})},
	"rows are next to each other": {seenBy: "copy_of_rows", submit: changed(cudaipc.OpCopy2D, func(op *cudaipc.Op) {
		op.SrcPitch = op.Bytes
	})},
	"awaits are not waited": {seenBy: "event_holds_back", submit: without(cudaipc.OpAwait)},
	"records come early":    {seenBy: "event_holds_back", submit: first(cudaipc.OpRecord)},
	"plain copies are short": {seenBy: "copy_of_plain_memory", submit: changed(cudaipc.OpCopy, func(op *cudaipc.Op) {
		op.Bytes--
	})},

	"synchronize does not wait": {seenBy: "synchronize", sync: func(context.Context, cudaipc.Stream) error { return nil }},
	"synchronize has no failures": {seenBy: "sticky", sync: func(ctx context.Context, s cudaipc.Stream) error {
		if err := s.Synchronize(ctx); !errors.Is(err, cudaipc.ErrSticky) {
			return err
		}
		return nil
	}},
	"a descriptor is left": {seenBy: "nothing_is_left", close: func() error {
		_, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
		return err
	}},

	"own handles open":        on("handle_of_this_process", func(v cudaipc.Device) importer { return importer{v, cudaipc.ErrOwnHandle} }),
	"stale handles open":      on("handle_of_freed_memory", func(v cudaipc.Device) importer { return importer{v, cudaipc.ErrStaleHandle} }),
	"handles of the dead":     on("handle_of_the_dead", func(v cudaipc.Device) importer { return importer{v, cudaipc.ErrStaleHandle} }),
	"noise opens":             on("no_handle", func(v cudaipc.Device) importer { return importer{v, cudaipc.ErrStaleHandle} }),
	"handles are not counted": on("handles_are_counted", func(v cudaipc.Device) uncounted { return uncounted{v} }),
	"sizes are forgotten":     on("handles_are_counted", func(v cudaipc.Device) sizeless { return sizeless{v} }),
	"offsets are forgotten":   on("handle_in_another_process", func(v cudaipc.Device) atBase { return atBase{v} }),
	"arenas are not shared":   on("arena_in_another_process", func(v cudaipc.Device) unshared { return unshared{v} }),
	"arenas are of any size":  on("arena", func(v cudaipc.Device) odd { return odd{v} }),
	"errors have no number":   on("out_of_memory", func(v cudaipc.Device) plain { return plain{v} }),
	"freeing twice is fine":   on("allocation", func(v cudaipc.Device) lenient { return lenient{v} }),
	"memory of others is freed": on("handle_of_another_process", func(v cudaipc.Device) lenient {
		return lenient{v}
	}),
	"any page will do":                on("register", func(v cudaipc.Device) roundsDown { return roundsDown{v} }),
	"registering twice works":         on("register_twice", func(v cudaipc.Device) forgiving { return forgiving{v} }),
	"failures are hidden":             on("sticky", func(v cudaipc.Device) healthy { return healthy{v} }),
	"events are never done":           on("event_without_a_record", func(v cudaipc.Device) undone { return undone{v} }),
	"a wrapped stream is another":     on("wrapped_stream", func(v cudaipc.Device) astray { return astray{v} }),
	"wrapped streams end with a name": on("closing_a_wrapped_stream", func(v cudaipc.Device) ending { return ending{v, map[uintptr]cudaipc.Stream{}} }),
	"each thread's stream is wrapped": on("default_streams", func(v cudaipc.Device) astray { return astray{v} }),
	"events are left":                 on("nothing_is_left", func(v cudaipc.Device) hoarder { return hoarder{v} }),
	"closing twice fails":             on("close_twice", func(v cudaipc.Device) onceOnly { return onceOnly{v, new(bool)} }),
}

type importer struct {
	cudaipc.Device
	hides error
}

func (v importer) Import(h cudaipc.Handle) (cudaipc.Ptr, int64, error) {
	p, n, err := v.Device.Import(h)
	if errors.Is(err, v.hides) {
		return 4096, 1 << 20, nil
	}
	return p, n, err
}

type sizeless struct{ cudaipc.Device }

func (v sizeless) Import(h cudaipc.Handle) (cudaipc.Ptr, int64, error) {
	p, _, err := v.Device.Import(h)
	return p, 0, err
}

type uncounted struct{ cudaipc.Device }

func (v uncounted) Unimport(p cudaipc.Ptr) error {
	for v.Device.Unimport(p) == nil {
		continue
	}
	return nil
}

type atBase struct{ cudaipc.Device }

func (v atBase) Export(p cudaipc.Ptr) (cudaipc.Handle, int64, error) {
	h, _, err := v.Device.Export(p)
	return h, 0, err
}

// unshared returns the descriptor of another arena.
type unshared struct{ cudaipc.Device }

func (v unshared) NewArena(sizeBytes int64) (cudaipc.Arena, error) {
	a, err := v.Device.NewArena(sizeBytes)
	if err != nil {
		return nil, err
	}
	b, err := v.Device.NewArena(sizeBytes)
	return otherFD{a, b}, err
}

type otherFD struct {
	cudaipc.Arena
	other cudaipc.Arena
}

func (a otherFD) FD() int { return a.other.FD() }

func (a otherFD) Close() error { return errors.Join(a.Arena.Close(), a.other.Close()) }

type odd struct{ cudaipc.Device }

func (v odd) NewArena(sizeBytes int64) (cudaipc.Arena, error) {
	a, err := v.Device.NewArena(sizeBytes)
	return oddArena{a}, err
}

type oddArena struct{ cudaipc.Arena }

func (a oddArena) Bytes() int64 { return a.Arena.Bytes() - 1 }

type plain struct{ cudaipc.Device }

func (v plain) Alloc(sizeBytes int64) (cudaipc.Ptr, error) {
	p, err := v.Device.Alloc(sizeBytes)
	if err != nil {
		err = cudaipc.ErrOutOfMemory
	}
	return p, err
}

type lenient struct{ cudaipc.Device }

func (v lenient) Free(p cudaipc.Ptr) error {
	_ = v.Device.Free(p)
	return nil
}

type roundsDown struct{ cudaipc.Device }

func (v roundsDown) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	if page := uint64(os.Getpagesize()); len(mem) > 0 && uint64(cudaipc.HostPtr(mem))%page != 0 {
		mem = mem[page-uint64(cudaipc.HostPtr(mem))%page:]
	}
	return v.Device.RegisterHost(mem, readOnly)
}

type forgiving struct{ cudaipc.Device }

func (v forgiving) RegisterHost(mem []byte, readOnly bool) (cudaipc.HostMemory, error) {
	h, err := v.Device.RegisterHost(mem, readOnly)
	if own := (*cudaipc.Error)(nil); errors.As(err, &own) && own.Code == 712 {
		return nil, nil //nolint:nilnil // that is the defect
	}
	return h, err
}

type healthy struct{ cudaipc.Device }

func (healthy) Err() error { return nil }

type undone struct{ cudaipc.Device }

func (v undone) NewEvent() (cudaipc.Event, error) {
	e, err := v.Device.NewEvent()
	return undoneEvent{e}, err
}

type undoneEvent struct{ cudaipc.Event }

func (undoneEvent) Done() (bool, error) { return false, nil }

// astray returns another stream than the requested one.
type astray struct{ cudaipc.Device }

func (v astray) WrapStream(uintptr) (cudaipc.Stream, error) { return v.NewStream() }

// ending closes the stream that it wraps.
type ending struct {
	cudaipc.Device
	made map[uintptr]cudaipc.Stream
}

func (v ending) NewStream() (cudaipc.Stream, error) {
	s, err := v.Device.NewStream()
	if err == nil {
		v.made[s.Raw()] = s
	}
	return s, err
}

func (v ending) WrapStream(raw uintptr) (cudaipc.Stream, error) { return v.made[raw], nil }

type onceOnly struct {
	cudaipc.Device
	closed *bool
}

func (v onceOnly) Close() error {
	if *v.closed {
		return cudaipc.ErrClosed
	}
	*v.closed = true
	return v.Device.Close()
}

// hoarder makes an extra event with each event.
type hoarder struct{ cudaipc.Device }

func (v hoarder) NewEvent() (cudaipc.Event, error) {
	if _, err := v.Device.NewEvent(); err != nil {
		return nil, err
	}
	return v.Device.NewEvent()
}
