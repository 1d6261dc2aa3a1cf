package lane_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestClosedWhileIncomplete closes a message before its producer is done. Its words may be unmapped
// from then on, and no call waits for it.
func TestClosedWhileIncomplete(t *testing.T) {
	from, _, dir := pair(t, lane.Options{})
	driver, err := emul.New(emul.Options{GranularityBytes: 1 << 16})
	if err != nil {
		t.Fatal(err)
	}
	reader, err := lane.Open(t.Context(), lane.Options{Driver: driver, Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	src, _ := from.tensor(codec.DTypeUint8, 4096)
	resume := holdStream(t, from)
	m := handOver(from, &bench{lane: reader}, src, lane.Pool)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := m.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("wait: %v, want context.Canceled", err)
	}
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	settled(t, m)
	if err := m.Wait(t.Context()); !errors.Is(err, lane.ErrClosed) || !strings.Contains(err.Error(), "the message was closed") {
		t.Errorf("wait for a closed message: %v, want ErrClosed, of the message", err)
	}
	if err := reader.Close(t.Context()); err != nil { // before the producer is done
		t.Error(err)
	}
	if err := driver.Close(); err != nil {
		t.Error(err)
	}
	resume()
	from.sync(from.s)
}

// TestSettledInOrder: functions of OnSettled run in the order of their registration, so a later one
// finds the lease released.
func TestSettledInOrder(t *testing.T) {
	b := newBench(t, emul.Options{}, lane.Options{})
	src, _ := b.tensor(codec.DTypeUint8, 64)
	m := b.receive(b.mustSend(src, lane.Pool))
	began, resume, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
	var order []int
	m.OnSettled(func() {
		close(began)
		<-resume
		order = append(order, 1)
	})
	closed := make(chan error)
	go func() { closed <- m.Close() }()
	<-began
	m.OnSettled(func() {
		order = append(order, 2)
		close(done)
	})
	close(resume)
	<-done
	if err := <-closed; err != nil || !slices.Equal(order, []int{1, 2}) {
		t.Errorf("called in the order %v (%v)", order, err)
	}
}
