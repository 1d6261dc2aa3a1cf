package directory

import (
	"errors"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

var errTest = errors.New("the end of the test")

// openFiles counts the open descriptors of this process.
func openFiles(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// watchNew watches a process that lasts until kill is called.
func watchNew(t *testing.T, o *Watches, number uint32) (owner lane.Owner, kill func()) {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if owner, err = o.Watch(Owner{Number: number}, pidfd, cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	return owner, func() {
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed
	}
}

// TestDeadOwnersAreForgotten: there are at most as many watches as live owners, plus
// one. Done of a dead owner's watch stays closed.
func TestDeadOwnersAreForgotten(t *testing.T) {
	var o Watches
	files := openFiles(t)
	var dead []lane.Owner
	for i := range uint32(5) {
		owner, kill := watchNew(t, &o, i)
		kill()
		<-owner.Done()
		dead = append(dead, owner)
		if n := len(o.watched); n != 1 {
			t.Errorf("%d watches when %d owners are dead", n, i+1)
		}
	}
	for i, owner := range dead {
		select {
		case <-owner.Done():
		default:
			t.Errorf("owner %d counts as alive again", i)
		}
	}
	alive, kill := watchNew(t, &o, 5)
	o.Close(errTest)
	select {
	case <-alive.Done():
		t.Error("the close of a watch counts as the death of its process")
	default:
	}
	if fd, err := unix.PidfdOpen(unix.Getpid(), 0); err != nil {
		t.Fatal(err)
	} else if _, err := o.Watch(Owner{Number: 6}, fd, unix.Getpid()); !errors.Is(err, lane.ErrUnavailable) {
		t.Errorf("a watch after the end: %v, want ErrUnavailable", err)
	}
	kill()
	for openFiles(t) > files { // a watch is closed concurrently
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}
