package duplex

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// lie has a side write a head that no frame was published for.
func lie(t *testing.T, d *Duplex) {
	t.Helper()
	geo, err := lane.Layout(1, laneBytes)
	if err != nil {
		t.Fatal(err)
	}
	_, head := d.own.parts(geo)
	binary.NativeEndian.PutUint64(head[64:], 1<<40)
}

// fill sends until a message has to wait for room.
func fill(t *testing.T, d *Duplex) {
	t.Helper()
	for d.Backlog() == 0 {
		if err := d.Send(&wire.Finish{Delivery: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Send(&wire.Finish{Delivery: 1}); err != nil { // the drain may have taken the one
		t.Fatal(err)
	}
}

// TestHeadThatLies: a peer that spoils the head of its lane is given up by the
// side that sends, although it sends nothing wrong itself.
func TestHeadThatLies(t *testing.T) {
	t.Run("before there is no room", func(t *testing.T) {
		da, db := meetIdle(t)
		a := run(da)
		lie(t, db)
		var err error
		for err == nil {
			err = a.Send(&wire.Finish{Delivery: 1})
		}
		if end := <-a.ended; !errors.Is(err, lane.ErrPeer) || !errors.Is(end, lane.ErrPeer) {
			t.Errorf("a message is %v, the end %v, want %v", err, end, lane.ErrPeer)
		}
	})
	t.Run("while a message waits for room", func(t *testing.T) {
		da, db := meetIdle(t)
		a := run(da)
		fill(t, da)
		lie(t, db)
		lane.Events{Own: db.own.frames, Peer: db.its.room}.Wake()
		if end := <-a.ended; !errors.Is(end, lane.ErrPeer) {
			t.Errorf("the end is %v, want %v", end, lane.ErrPeer)
		}
	})
}

// TestFrameThatLies: a side that spoils a header that it has published is given up
// by the one that receives.
func TestFrameThatLies(t *testing.T) {
	da, db := meetIdle(t)
	if err := da.Send(&wire.Finish{Delivery: 1}); err != nil {
		t.Fatal(err)
	}
	binary.NativeEndian.PutUint64(da.own.segment.Bytes()[4096:], 1<<40)
	if end := <-run(db).ended; !errors.Is(end, lane.ErrPeer) {
		t.Errorf("the end is %v, want %v", end, lane.ErrPeer)
	}
}

// TestTooMuchWaits: a peer that reads nothing is given up with the first message
// that is not kept for it.
func TestTooMuchWaits(t *testing.T) {
	da, _ := meetIdle(t)
	a := run(da)
	big := &wire.Deliver{Payload: make([]byte, wire.MaxInline), Size: wire.MaxInline, Flags: wire.FlagInline}
	var err error
	for err == nil {
		err = a.Send(big)
	}
	if !errors.Is(err, ErrBacklog) {
		t.Fatalf("a message is %v, want %v", err, ErrBacklog)
	}
	if end := <-a.ended; !errors.Is(end, ErrBacklog) {
		t.Errorf("the end is %v, want %v", end, ErrBacklog)
	}
}
