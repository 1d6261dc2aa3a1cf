package messages_test

import (
	"encoding/hex"
	"testing"

	"pgregory.net/rapid"

	"github.com/omnibus-runtime/omnibus/messages"
)

func TestHandleRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := handles().Draw(t, "handle")

		b, err := want.MarshalBinary()
		if err != nil {
			t.Fatalf("MarshalBinary: %v", err)
		}
		if len(b) != messages.HandleSize {
			t.Fatalf("MarshalBinary wrote %d bytes, HandleSize is %d", len(b), messages.HandleSize)
		}
		var got messages.Handle
		if err := got.UnmarshalBinary(b); err != nil {
			t.Fatalf("UnmarshalBinary: %v", err)
		}
		if got != want {
			t.Fatalf("binary form: got %v, want %v", got, want)
		}
	})
}

// The binary form is a contract with other processes, so its bytes are written
// out here once.
func TestHandleBinaryForm(t *testing.T) {
	h := messages.Handle{
		Store:  0x0102030405060708,
		Gen:    0x1112131415161718,
		Offset: 0x2122232425262728,
		Size:   0x3132333435363738,
		Slot:   0x41424344,
		Codec:  0x51525354,
	}
	const want = "0807060504030201" + "1817161514131211" + "2827262524232221" + "3837363534333231" + "44434241" + "54535251"
	b, err := h.AppendBinary([]byte{0xff})
	if err != nil {
		t.Fatalf("AppendBinary: %v", err)
	}
	if got := hex.EncodeToString(b); got != "ff"+want {
		t.Errorf("AppendBinary = %s\nwant          ff%s", got, want)
	}
}

func TestHandleRejectsOtherLengths(t *testing.T) {
	for _, n := range []int{0, 1, messages.HandleSize - 1, messages.HandleSize + 1, 2 * messages.HandleSize} {
		h := messages.Handle{Gen: 7}
		if err := h.UnmarshalBinary(make([]byte, n)); err == nil {
			t.Errorf("%d bytes are a handle", n)
		}
		if h.Gen != 7 {
			t.Errorf("%d bytes: the handle was changed to %v", n, h)
		}
	}
}
