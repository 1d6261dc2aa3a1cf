package peer

import (
	"encoding/binary"
	"io"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// unknown is a message of an unknown kind that the receiver may skip.
func unknown(descriptors uint8) []byte {
	b := binary.LittleEndian.AppendUint32(nil, wire.HeaderSize)
	b = binary.LittleEndian.AppendUint16(b, 60000)
	return append(b, descriptors, 1)
}

// TestUnknownIsSkipped: a receiver skips a message of an unknown kind, if its flag allows that, and
// closes its descriptors.
func TestUnknownIsSkipped(t *testing.T) {
	a, b := pair(t)
	var pipe [2]int
	if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pipe[0])
	in := NewReceiver(b)
	for i, packet := range [][]byte{
		append(unknown(1), mustAppend(t, &wire.Release{Delivery: 0})...),
		append(mustAppend(t, &wire.Release{Delivery: 1}), unknown(1)...),
		append(unknown(1), mustAppend(t, &wire.Release{Delivery: 2})...),
	} {
		if err := a.Send(packet, []int{pipe[1]}); err != nil {
			t.Fatal(err)
		}
		var m wire.Release
		h, body, fds, err := in.Next()
		if err == nil {
			err = wire.Decode(body, &m)
		}
		if err != nil || h.Kind != wire.KindRelease || len(fds) != 0 || m.Delivery != uint32(i) {
			t.Fatalf("received %v %+v with %d descriptors, %v; want release %d", h.Kind, m, len(fds), err, i)
		}
	}
	if err := unix.Close(pipe[1]); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Read(pipe[0], make([]byte, 1)); err != nil {
		t.Errorf("the pipe is still open for writing: %v", err)
	}
}

// TestUnknownIsSkippedByPoll: Poll does not wait for a packet after a message that it skips.
func TestUnknownIsSkippedByPoll(t *testing.T) {
	a, b := laned(t)
	rec := serve(b, 0)
	sleeps(a)
	if err := a.out.lane.Load().TrySend(0, unknown(0)); err != nil {
		t.Fatal(err)
	}
	a.out.frames++
	rec.in.Poll(never, always)
	_ = a.Close()
	if err := <-rec.ended; err != io.EOF {
		t.Errorf("the end is %v, want EOF", err)
	}
}
