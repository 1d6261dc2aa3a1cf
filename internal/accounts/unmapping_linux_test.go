package accounts

import (
	"context"
	"testing"

	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestUnmapper: a goroutine that releases memory does not wait for the system, unless maxUnmapping
// segments wait already, or the memory is small.
func TestUnmapper(t *testing.T) {
	var u unmapper
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := u.wait(canceled); err != nil {
		t.Errorf("wait for nothing: %v", err)
	}
	held := make(chan struct{})
	u.enqueue(func() { <-held }, 0)
	open := func(bytes int64) *shmstore.Segment {
		t.Helper()
		mem, err := shmstore.NewSegment("test", bytes)
		if err != nil {
			t.Fatal(err)
		}
		u.close(mem)
		return mem
	}
	small := open(unmapAsyncBytes - 1)
	var beside []*shmstore.Segment
	for range maxUnmapping { // the goroutine may have taken one more
		beside = append(beside, open(unmapAsyncBytes))
	}
	for range 2 {
		open(unmapAsyncBytes)
	}
	most := open(unmapAsyncBytes)
	if small.FD() != -1 || most.FD() != -1 {
		t.Errorf("descriptors %d of little memory and %d behind much: not closed at once", small.FD(), most.FD())
	}
	for _, mem := range beside[:maxUnmapping-1] {
		if mem.FD() == -1 {
			t.Error("memory was given back by the goroutine that released it")
		}
	}
	if err := u.wait(canceled); err == nil {
		t.Error("wait did not wait")
	}
	close(held)
	if err := u.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, mem := range beside {
		if mem.FD() != -1 {
			t.Error("wait did not wait for what was closed before it")
		}
	}
}
