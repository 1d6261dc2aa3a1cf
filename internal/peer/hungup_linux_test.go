package peer

import "testing"

// TestHungUp: HungUp reports the end of a connection at once, even with unread packets.
func TestHungUp(t *testing.T) {
	a, b := pair(t)
	if err := b.Send([]byte("x"), nil); err != nil {
		t.Fatal(err)
	}
	if a.HungUp() || b.HungUp() {
		t.Error("HungUp of a connection with two open ends reports true")
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if !a.HungUp() || !b.HungUp() {
		t.Errorf("a connection with a closed end: %v, and the closed end: %v", a.HungUp(), b.HungUp())
	}
	if n, _, err := a.Receive(make([]byte, 10)); n != 1 || err != nil {
		t.Errorf("the packet that was sent before: %d bytes, %v", n, err)
	}
}
