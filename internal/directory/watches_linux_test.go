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

// openFiles counts what this process has open.
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

// TestDeadOwnersAreForgotten: there are no more watches than owners that live, and
// one; who has a dead one's goes on seeing that it is dead.
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
			t.Errorf("owner %d lives again", i)
		}
	}
	alive, kill := watchNew(t, &o, 5)
	o.Close(errTest)
	select {
	case <-alive.Done():
		t.Error("the end of a watch is taken for a death")
	default:
	}
	if fd, err := unix.PidfdOpen(unix.Getpid(), 0); err != nil {
		t.Fatal(err)
	} else if _, err := o.Watch(Owner{Number: 6}, fd, unix.Getpid()); !errors.Is(err, lane.ErrUnavailable) {
		t.Errorf("a watch after the end: %v, want ErrUnavailable", err)
	}
	kill()
	for openFiles(t) > files { // a watch is closed beside
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}
