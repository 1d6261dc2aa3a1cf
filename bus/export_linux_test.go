package bus

import (
	"syscall"
	"testing"
)

// Place is where a payload lies: the file of its memory, and the offset there.
type Place struct {
	File   uint64
	Offset int64
}

// PlaceOf tells where the payload of a delivery from another process lies.
func PlaceOf(t testing.TB, d *Delivery) Place {
	t.Helper()
	if d.foreign == nil || d.foreign.seg == nil {
		t.Error("the payload is not in shared memory")
		return Place{}
	}
	var st syscall.Stat_t
	if err := syscall.Fstat(d.foreign.seg.mem.FD(), &st); err != nil {
		t.Error(err)
	}
	return Place{File: st.Ino, Offset: d.foreign.offset}
}

// OpenFiles counts what this process has open: connections, events and memory.
func OpenFiles(t testing.TB) int { return openFiles(t) }
