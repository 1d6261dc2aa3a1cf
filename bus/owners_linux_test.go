package bus

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/peer"
)

// watchNew watches a process that lasts until kill is called.
func watchNew(t *testing.T, o *owners, number uint32) (owner lane.Owner, kill func()) {
	t.Helper()
	cmd := lasting(t)
	pidfd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	if owner, err = o.watch(ownerKey{number: number}, pidfd, cmd.Process.Pid); err != nil {
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
	var o owners
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
	o.close()
	select {
	case <-alive.Done():
		t.Error("the end of a watch is taken for a death")
	default:
	}
	if fd, err := unix.PidfdOpen(unix.Getpid(), 0); err != nil {
		t.Fatal(err)
	} else if _, err := o.watch(ownerKey{number: 6}, fd, unix.Getpid()); !errors.Is(err, lane.ErrUnavailable) {
		t.Errorf("a watch after the end: %v, want ErrUnavailable", err)
	}
	kill()
	Await(t, func() bool { return openFiles(t) <= files })
}

// TestPublishAfterHangingUp: the names of a session that the host takes to be alive
// are free as soon as its process has hung up: it may have joined anew.
func TestPublishAfterHangingUp(t *testing.T) {
	srv := new(Server)
	old, other := newAcquainted(t, srv, 1), newAcquainted(t, srv, 2)
	d := newDirectory()
	defer d.close()
	names := []lane.Name{{Number: 1}, {Number: 2}}
	publish := func(a *acquainted, name lane.Name) error {
		fd, err := peer.Self() // something
		if err != nil {
			t.Fatal(err)
		}
		return d.publish(a.session, name, fd, 1)
	}
	for _, name := range names {
		if err := publish(old, name); err != nil {
			t.Fatal(err)
		}
	}
	if err := publish(other, names[0]); !errors.Is(err, lane.ErrPublished) {
		t.Errorf("publish a name of a process that is there: %v, want ErrPublished", err)
	}
	if err := old.client.Close(); err != nil {
		t.Fatal(err)
	}
	if err := publish(other, names[0]); err != nil {
		t.Errorf("publish a name of a process that has hung up: %v", err)
	}
	use := func(*published, int) error { return nil }
	if err := d.lookup(names[1], use); !errors.Is(err, lane.ErrNotPublished) {
		t.Errorf("find what a process has published that has hung up: %v, want ErrNotPublished", err)
	}
	d.leave(old.session)
	if err := d.lookup(names[0], use); err != nil {
		t.Errorf("find a name that is another's by now: %v", err)
	}
}
