package node_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	roles["publisher"] = func() {
		n, err := node.Join(context.Background(), "publisher", node.JoinOptions{})
		if err == nil {
			err = n.Directory().Publish(context.Background(), named(1), int(os.Stdin.Fd()), 11)
		}
		if err != nil && !errors.Is(err, bus.ErrHostGone) { // the host may end after the name was found
			fmt.Fprintln(os.Stderr, err)
			return
		}
		select {} // until it is killed
	}
	roles["publishing host"] = func() {
		b, err := bus.Open(context.Background(), testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
		if err == nil {
			err = b.Directory().Publish(context.Background(), named(2), int(os.Stdin.Fd()), 12)
		}
		if err == nil {
			_, err = host.Listen(b, os.Getenv(node.EnvSocket), host.ListenOptions{})
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		select {}
	}
}

// awaitFound waits until another process has published a name.
func awaitFound(t *testing.T, d lane.Directory, name lane.Name) lane.Found {
	t.Helper()
	testbus.Await(t, func() bool {
		_, err := d.Find(t.Context(), name)
		if err != nil && !errors.Is(err, lane.ErrNotPublished) {
			t.Fatal(err)
		}
		return err == nil
	})
	return mustFind(t, d, name)
}

func isAlive(o lane.Owner) bool {
	select {
	case <-o.Done():
		return false
	default:
		return true
	}
}

// TestPublisherDies: a process that has found a descriptor notices the death of its publisher.
// After the death no find succeeds, however soon it comes.
func TestPublisherDies(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{})
	for range 5 {
		cmd := h.childAs(t, "publisher", "")
		found := awaitFound(t, n.Directory(), named(1))
		here := mustFind(t, h.bus.Directory(), named(1))
		if found.SizeBytes != 11 || !isAlive(found.Owner) || !isAlive(here.Owner) {
			t.Errorf("found %+v, whose owner lives: %v, %v", found, isAlive(found.Owner), isAlive(here.Owner))
		}
		kill(t, cmd)
		wantNotPublished(t, n.Directory(), named(1))
		wantNotPublished(t, h.bus.Directory(), named(1))
		<-found.Owner.Done()
		<-here.Owner.Done()
		mustPublish(t, n.Directory(), named(1), someFile(t), 1) // the name is free
		n.Directory().Withdraw(named(1))
	}
}

// TestPublisherDiesWithoutAHost: the death of a publisher is noticed without a host, and the death
// of the host ends the host's own publications.
func TestPublisherDiesWithoutAHost(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	old := h.childAs(t, "publishing host", "")
	testbus.Await(t, func() bool {
		n, err := node.Join(t.Context(), "first", node.JoinOptions{Socket: h.path})
		return err == nil && n.Close(t.Context()) == nil
	})
	n := h.join(t, node.JoinOptions{})
	d := n.Directory()
	cmd := h.childAs(t, "publisher", "")
	found, host := awaitFound(t, d, named(1)), mustFind(t, d, named(2))
	if host.SizeBytes != 12 || !isAlive(host.Owner) {
		t.Errorf("found %+v of the host, which lives: %v", host, isAlive(host.Owner))
	}
	kill(t, old)
	<-host.Owner.Done()
	testbus.Await(t, func() bool { return n.Epoch() == 0 })
	if _, err := d.Find(t.Context(), named(1)); !errors.Is(err, lane.ErrUnavailable) || !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("find without a host: %v, want ErrUnavailable and ErrHostGone", err)
	}
	if err := d.Publish(t.Context(), named(3), int(someFile(t).Fd()), 1); !errors.Is(err, lane.ErrUnavailable) || !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("publish without a host: %v, want ErrUnavailable and ErrHostGone", err)
	}
	if !isAlive(found.Owner) {
		t.Error("the death of the host is taken for the death of the publisher")
	}
	kill(t, cmd)
	<-found.Owner.Done()
}

// TestNamesOutliveTheHost: a node publishes its names again at the next host, also those that it
// has published without a host.
func TestNamesOutliveTheHost(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	old := h.hostAlone(t)
	n := h.join(t, node.JoinOptions{Rejoin: true})
	d := n.Directory()
	f := someFile(t)
	mustPublish(t, d, named(1), f, 1)
	mustPublish(t, d, named(2), f, 2)
	kill(t, old)
	testbus.Await(t, func() bool { return n.Epoch() == 0 })
	if _, err := d.Find(t.Context(), named(1)); !errors.Is(err, lane.ErrUnavailable) || !errors.Is(err, bus.ErrHostGone) {
		t.Errorf("find without a host: %v, want ErrUnavailable and ErrHostGone", err)
	}
	d.Withdraw(named(2))
	mustPublish(t, d, named(3), f, 3)
	if err := d.Publish(t.Context(), named(3), int(f.Fd()), 1); !errors.Is(err, lane.ErrPublished) {
		t.Errorf("publish twice without a host: %v, want ErrPublished", err)
	}
	mustPublish(t, d, named(4), f, 4)
	d.Withdraw(named(4))
	h.hostAlone(t)
	testbus.Await(t, func() bool { return n.Epoch() != 0 })
	other := h.join(t, node.JoinOptions{}).Directory()
	wantSame(t, awaitFound(t, other, named(1)), f, 1)
	wantSame(t, awaitFound(t, other, named(3)), f, 3)
	wantNotPublished(t, other, named(2))
	wantNotPublished(t, other, named(4))
	d.Withdraw(named(3))
	wantNotPublished(t, d, named(3))
	wantNotPublished(t, other, named(3))
	if err := n.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wantNotPublished(t, other, named(1))
}

// TestPublishWhileHostsComeAndGo: every name is published in the end, however often the host
// changes.
func TestPublishWhileHostsComeAndGo(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	n := h.join(t, node.JoinOptions{Rejoin: true})
	f := someFile(t)
	const names = 200
	published := make(chan struct{})
	go func() {
		defer close(published)
		for i := range uint32(names) {
			if err := n.Directory().Publish(t.Context(), named(i), int(f.Fd()), int64(i)+1); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 10 {
		testbus.Await(t, func() bool { return n.Epoch() != 0 })
		node.BreakConnection(n)
	}
	<-published
	for i := range uint32(names) {
		wantSame(t, awaitFound(t, h.bus.Directory(), named(i)), f, int64(i)+1)
	}
}
