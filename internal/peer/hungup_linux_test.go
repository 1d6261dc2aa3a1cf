package peer

import "testing"

// TestHungUp: the end of a connection is seen at once, whatever is to be read.
func TestHungUp(t *testing.T) {
	a, b := pair(t)
	if err := b.Send([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if a.HungUp() || b.HungUp() {
		t.Error("a connection with both its ends is said to have ended")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !a.HungUp() || !b.HungUp() {
		t.Errorf("a connection whose end is closed: %v, and the end itself: %v", a.HungUp(), b.HungUp())
	}
	if n, _, err := a.Receive(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("what was sent before: %d bytes, %v", n, err)
	}
}
