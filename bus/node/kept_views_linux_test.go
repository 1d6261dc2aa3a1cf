package node_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

const (
	viewedBytes = 40_000  // too large for a message
	viewedArena = 1 << 18 // space for six payloads
)

// viewing is a host with two thin clients: one serves its stage, and the other submits a request
// and keeps views of its results.
type viewing struct {
	*hosted
	producer, caller *thinClient
	task             uint32
	memory           *shmstore.Segment // of the producer, with space for six payloads
	put              uint32            // the last
}

func view(t *testing.T, opts bus.Options) *viewing {
	t.Helper()
	v := &viewing{hosted: listen(t, bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "a", Remote: &bus.Remote{}}},
		Edges:  []bus.Edge{{From: "a"}},
	}, opts)}
	v.producer = dialThin(t, v.path)
	v.producer.await(wire.KindWelcome)
	v.producer.send(&wire.Serve{Token: 1, Stage: "a"})
	v.producer.await(wire.KindServing)
	v.memory, _ = newOffer(t, viewedArena, viewedArena)
	v.producer.offer(v.memory, 1)
	v.caller = dialThin(t, v.path)
	v.caller.send(&wire.Submit{Source: ownSource(1)})
	v.caller.send(inMessage(1, ownSource(1), "go"))
	v.task = v.producer.await(wire.KindDeliver).(*wire.Deliver).Source
	return v
}

// result has the stage emit a result, and the caller receive it. It returns the number of the
// delivery, and whether the payload has its own segment.
func (v *viewing) result() (delivery uint32, alone bool) {
	v.producer.t.Helper()
	v.put++
	m := &wire.Put{Put: v.put, Source: v.task, Edge: wire.AllEdges, Codec: uint32(codec.IDRaw), Segment: 1, Offset: uint64(v.put-1) * viewedBytes, Size: viewedBytes}
	if alone = int64(m.Offset+m.Size) > v.memory.Size(); alone {
		own, _ := newOffer(v.producer.t, viewedBytes, viewedBytes)
		m.Segment, m.Offset, m.Flags = 1+v.put, 0, wire.FlagOwn
		v.producer.offer(own, m.Segment)
	}
	v.producer.send(m)
	return v.caller.await(wire.KindDeliver).(*wire.Deliver).Delivery, alone
}

// keep is result n times, with a kept view of each.
func (v *viewing) keep(n int) (deliveries []uint32, alone int) {
	v.producer.t.Helper()
	for range n {
		d, own := v.result()
		deliveries = append(deliveries, d)
		if own {
			alone++
		}
		v.caller.send(&wire.Finish{Delivery: d, Flags: wire.FinishKeep})
		v.handled()
	}
	return deliveries, alone
}

// handled returns when the host has handled all messages of the caller.
func (v *viewing) handled() {
	v.caller.t.Helper()
	v.caller.send(&wire.Call{Token: 8, Method: "check"})
	v.caller.await(wire.KindReply)
}

// together are the holdings that stand for several payloads, by kind.
func (v *viewing) together() map[string]host.Holding {
	all := make(map[string]host.Holding)
	for _, h := range v.server.Holdings() {
		if h.Together != "" {
			all[h.Together] = h
		}
	}
	return all
}

// TestKeptViewsAreListed: Holdings lists views that outlive their deliveries, and segments that
// hold one payload.
func TestKeptViewsAreListed(t *testing.T) {
	v := view(t, bus.Options{})
	const n = 10
	deliveries, alone := v.keep(n)
	if alone == 0 || alone == n {
		t.Fatalf("%d payloads of %d have memory of their own, in an arena of %d bytes", alone, n, viewedArena)
	}
	all := v.together()
	if h := all["kept"]; h.Payloads != n || h.Bytes != n*viewedBytes || h.Age <= 0 || h.PID == 0 {
		t.Errorf("%d views of %d bytes are kept, the host says %+v", n, viewedBytes, h)
	}
	if h := all["alone"]; h.Payloads != alone || h.Bytes < alone*viewedBytes || h.Bytes >= (alone+1)*viewedBytes {
		t.Errorf("%d payloads of %d bytes have memory of their own, the host says %+v", alone, viewedBytes, h)
	}
	producer, caller := v.server.Processes()[0], v.server.Processes()[1]
	if k := caller.Kept; k.Payloads != n || k.Bytes != n*viewedBytes || k.Oldest <= 0 || producer.Kept != (host.KeptStats{}) {
		t.Errorf("the caller keeps %+v, the producer %+v", k, producer.Kept)
	}
	if a := producer.Arena; a.Alone != alone || a.AloneBytes < int64(alone)*viewedBytes || caller.Arena.Alone != 0 {
		t.Errorf("the arena of the producer: %+v, of the caller: %+v", a, caller.Arena)
	}
	for _, d := range deliveries {
		v.caller.send(&wire.Release{Delivery: d})
	}
	v.handled()
	if all := v.together(); len(all) > 0 {
		t.Errorf("nothing is kept any more, the host says %+v", all)
	}
}

// TestOwnSegmentsAreListed: Holdings lists a segment that a client has offered for one payload.
func TestOwnSegmentsAreListed(t *testing.T) {
	v := view(t, bus.Options{})
	seg, err := shmstore.NewSegment("own", viewedBytes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(seg.Close)
	v.producer.sendFD(&wire.Offer{Segment: 9, Bytes: viewedBytes}, seg.FD())
	v.producer.send(&wire.Put{Put: 1, Source: v.task, Flags: wire.FlagOwn, Segment: 9, Size: viewedBytes})
	d := v.caller.await(wire.KindDeliver).(*wire.Deliver).Delivery
	if h := v.together()["alone"]; h.Payloads != 1 || h.Bytes != int(seg.Size()) {
		t.Errorf("a segment of %d bytes for one payload, the host says %+v", seg.Size(), h)
	}
	v.caller.send(&wire.Finish{Delivery: d})
	v.producer.await(wire.KindReturned)
	if all := v.together(); len(all) > 0 {
		t.Errorf("it was returned, the host says %+v", all)
	}
}

// TestLeftPayloadsAreListed: the payloads that a living process may read after its connection has
// ended stay, and are listed as left.
func TestLeftPayloadsAreListed(t *testing.T) {
	v := view(t, bus.Options{})
	v.keep(2)
	v.result() // not finished
	v.caller.send(&wire.Release{Delivery: 1 << 30})
	v.caller.await(wire.KindRefuse)
	testbus.Await(t, func() bool { return v.together()["left"].Payloads > 0 })
	if h := v.together()["left"]; h.Payloads != 3 || h.Bytes != 3*viewedBytes || h.Age <= 0 || h.PID == 0 {
		t.Errorf("3 payloads of %d bytes are left, the host says %+v", viewedBytes, h)
	}
	if all := v.together(); len(all) != 1 {
		t.Errorf("something else is there: %+v", all)
	}
	if p := v.server.Processes()[1]; p.Left.Payloads != 3 || p.Left.Bytes != 3*viewedBytes || p.Kept.Payloads != 0 {
		t.Errorf("the host says %+v", p)
	}
}

// TestKeptViewsDoNotBlockEmissions: an emission that finds no space because of kept views gets
// other memory at once.
func TestKeptViewsDoNotBlockEmissions(t *testing.T) {
	t.Run("in the store of the host", func(t *testing.T) {
		const size, n = 40 << 10, 40
		h := listen(t, bus.Pipeline{
			Stages: []bus.StageSpec{bus.Stage("a", func(task *bus.Task, _ string) ([]byte, error) { return make([]byte, size), nil })},
			Edges:  []bus.Edge{{From: "a"}},
		}, bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20}, MaxRequests: 1})
		c := dialThin(t, h.path)
		source := ownSource(1)
		c.send(&wire.Submit{Source: source})
		for range n { // an emission that waited for space would exceed the connection's deadline
			in := inMessage(1, source, "\xa2go")
			in.Codec = uint32(codec.IDMsgpack)
			c.send(in)
			d := c.await(wire.KindDeliver).(*wire.Deliver)
			c.send(&wire.Finish{Delivery: d.Delivery, Flags: wire.FinishKeep})
		}
		var spilt int64
		for _, e := range h.bus.Stats().Edges {
			spilt += e.Spilled
		}
		if spilt == 0 {
			t.Error("no payload was spilled")
		}
	})
}

// TestKeptViewsAreWarnedOf: the log names the process whose kept views fill the memory, once.
func TestKeptViewsAreWarnedOf(t *testing.T) {
	var log lockedBuffer
	v := view(t, bus.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	warnings := func() int { return strings.Count(log.String(), "keeps views of so many payloads") }
	v.keep(2)
	if n := warnings(); n != 0 {
		t.Errorf("%d warnings of two views", n)
	}
	deliveries, _ := v.keep(8)
	if n := warnings(); n != 1 || !strings.Contains(log.String(), fmt.Sprintf("pid=%d", os.Getpid())) {
		t.Errorf("%d warnings:\n%s", n, log.String())
	}
	for _, d := range deliveries {
		v.caller.send(&wire.Release{Delivery: d})
	}
	v.keep(8)
	if n := warnings(); n != 1 {
		t.Errorf("%d warnings of one process", n)
	}
}
