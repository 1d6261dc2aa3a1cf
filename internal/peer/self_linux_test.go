package peer

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSelf(t *testing.T) {
	checkNoLeak(t, func() {
		fd, err := Self()
		if err != nil {
			t.Fatal(err)
		}
		p, err := Adopt(fd, os.Getpid())
		if err != nil {
			t.Fatal(err)
		}
		if p.Exited() || !p.alive() {
			t.Error("this process is dead")
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestDuplicate(t *testing.T) {
	checkNoLeak(t, func() {
		f := devNull(t)
		own, err := Duplicate(int(f.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		flags, err := unix.FcntlInt(uintptr(own), unix.F_GETFD, 0)
		if err != nil || flags&unix.FD_CLOEXEC == 0 || own == int(f.Fd()) {
			t.Errorf("descriptor %d with flags %#x, %v", own, flags, err)
		}
		CloseAll([]int{own})
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	if own, err := Duplicate(-1); err == nil {
		t.Errorf("a duplicate %d of nothing", own)
	}
}

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
