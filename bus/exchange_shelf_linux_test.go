package bus_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// putAs puts a payload, and returns what it is got by.
func putAs(t testing.TB, e connector.Transport, key string, payload []byte) connector.Metadata {
	t.Helper()
	meta, err := e.Put(context.Background(), exchangeEdge, key, len(payload), filled(payload))
	if err != nil {
		t.Fatalf("put %q: %v", key, err)
	}
	return meta
}

func getBy(t testing.TB, e connector.Transport, key string, meta connector.Metadata) connector.Payload {
	t.Helper()
	p, err := e.Get(context.Background(), exchangeEdge, key, meta)
	if err != nil {
		t.Fatalf("get %q by %v: %v", key, meta, err)
	}
	return p
}

// onShelf hands values over until they lie on a shelf that both ends know.
func onShelf(t testing.TB, from, to connector.Transport) {
	t.Helper()
	bus.Await(t, func() bool {
		meta := putAs(t, from, "first", payloadOf("large"))
		getBy(t, to, "first", meta).Release()
		return bus.OnShelf(to, meta)
	})
}

// TestShelf: what a node has put another gets by its number while the host is stopped, in
// place, once, and the room is used again when the host goes on.
func TestShelf(t *testing.T) {
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	from, to := h.exchange(t), h.exchange(t)
	onShelf(t, from, to)
	stopProcess(t, cmd.Process)
	for i, key := range []string{"small", "large", "other"} {
		want := payloadOf(key + "long enough")
		p := getBy(t, to, key, putAs(t, from, key, want))
		if !bytes.Equal(p.Bytes(), want) {
			t.Errorf("%d: %q is not what was put", i, key)
		}
		p.Release()
	}
	meta := putAs(t, from, "once", payloadOf("large"))
	p := getBy(t, to, "once", meta)
	if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for _, again := range []connector.Transport{to, from, h.exchange(t)} {
		if _, err := again.Get(t.Context(), exchangeEdge, "once", meta); !errors.Is(err, connector.ErrNotFound) {
			t.Errorf("again: %v, want ErrNotFound", err)
		}
	}
	if !bytes.Equal(p.Bytes(), payloadOf("large")) {
		t.Error("what was got has changed")
	}
	p.Release()
	for i := range 400 { // 100 kB each, of 8 MB
		key := fmt.Sprint("large", i)
		getBy(t, to, key, putAs(t, from, key, payloadOf(key))).Release()
	}
	if err := errors.Join(from.Close(), to.Close()); err != nil {
		t.Error(err)
	}
}

// TestShelfOfTheHost: what the host's process puts is taken in the same way.
func TestShelfOfTheHost(t *testing.T) {
	h := exchanging(t, bus.Options{})
	from, to := h.bus.Exchange(), h.exchange(t)
	onShelf(t, from, to)
	meta := putAs(t, from, "large", payloadOf("large"))
	p := getBy(t, to, "large", meta)
	if _, err := from.Get(t.Context(), exchangeEdge, "large", meta); !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("what a node has the host has too: %v", err)
	}
	if !bytes.Equal(p.Bytes(), payloadOf("large")) {
		t.Error("it is not what was put")
	}
	p.Release()
	putAs(t, from, "more", payloadOf("large"))
	get(t, from, "more").Release()
	h.wantEmpty(t)
}

// TestShelfIsSeen: the host says who has what was taken without it.
func TestShelfIsSeen(t *testing.T) {
	h := exchanging(t, bus.Options{})
	from, to := h.exchange(t), h.exchange(t)
	onShelf(t, from, to)
	h.wantEmpty(t)
	p := getBy(t, to, "large", putAs(t, from, "large", payloadOf("large")))
	bus.Await(t, func() bool {
		all := h.server.Holdings()
		return len(all) == 1 && all[0].Exchange == "fetched" && all[0].Key == "large" && all[0].Bytes == len(payloadOf("large"))
	})
	p.Release()
	h.wantEmpty(t)
}

// TestShelfPutterDies: what it had on its shelf goes with it, wherever it dies.
func TestShelfPutterDies(t *testing.T) {
	for _, fault := range []string{"node-before-shelve", "node-shelved"} {
		t.Run(fault, func(t *testing.T) {
			h := exchanging(t, bus.Options{})
			n := h.exchange(t)
			x := h.exchanger(t, fault)
			puts := 0
			bus.Await(t, func() bool { // until its shelf is there
				puts++
				return !x.ask(fmt.Sprint("put large", puts))
			})
			h.noProcess(t, 1)
			wantNothing(t, n, fmt.Sprint("large", puts))
			h.wantEmpty(t)
		})
	}
}

// TestShelfReaderDies: what it had taken is gone with it, whether it has said so or not, and
// the room is used again.
func TestShelfReaderDies(t *testing.T) {
	for _, fault := range []string{"node-claimed", "node-given", "node-told"} {
		t.Run(fault, func(t *testing.T) {
			h := exchanging(t, bus.Options{})
			n, other := h.exchange(t), h.exchange(t)
			x := h.exchanger(t, fault)
			var taken, last connector.Metadata
			bus.Await(t, func() bool { // until it has been told of the shelf
				taken, last = last, putAs(t, n, "large", payloadOf("large"))
				return !x.ask(fmt.Sprint("take ", last["entry"], " large"))
			})
			h.noProcess(t, 2)
			if fault == "node-told" { // it may have died when it told of the one before
				if p, err := other.Get(t.Context(), exchangeEdge, "large", last); err == nil {
					p.Release()
				}
			} else {
				taken = last
			}
			if p, err := other.Get(t.Context(), exchangeEdge, "large", taken); !errors.Is(err, connector.ErrNotFound) {
				t.Errorf("what a dead process had is got again: %v", err)
				p.Release()
			}
			h.wantEmpty(t)
			wantWholeRoom(t, n)
		})
	}
}

// wantWholeRoom fails if some of the room of a node stays taken.
func wantWholeRoom(t *testing.T, n connector.Transport) {
	t.Helper()
	const size, all = 1 << 20, 6 // of 8 MiB, which may be cut up
	ctx, cancel := context.WithTimeout(t.Context(), bus.Patience)
	defer cancel()
	for i := range all {
		if _, err := n.Put(ctx, exchangeEdge, fmt.Sprint("room", i), size, func([]byte) error { return nil }); err != nil {
			t.Errorf("after %d MiB of 8: %v", i, err)
			return
		}
	}
	for i := range all {
		if err := n.Cleanup(ctx, fmt.Sprint("room", i)); err != nil {
			t.Error(err)
		}
	}
}

// TestShelfCleanup: what is taken back is not to be had by its number either, and what was
// taken is not taken back.
func TestShelfCleanup(t *testing.T) {
	h := exchanging(t, bus.Options{ExchangeTTL: time.Hour})
	from, to := h.exchange(t), h.exchange(t)
	onShelf(t, from, to)
	held := putAs(t, from, "r1", payloadOf("large"))
	p := getBy(t, to, "r1", held)
	lies := putAs(t, from, "r1", payloadOf("large"))
	if err := from.Cleanup(t.Context(), "r1"); err != nil {
		t.Fatal(err)
	}
	for _, meta := range []connector.Metadata{held, lies} {
		if _, err := to.Get(t.Context(), exchangeEdge, "r1", meta); !errors.Is(err, connector.ErrNotFound) {
			t.Errorf("after Cleanup: %v, want ErrNotFound", err)
		}
	}
	for range 100 {
		putAs(t, from, "r2", payloadOf("other"))
	}
	if !bytes.Equal(p.Bytes(), payloadOf("large")) {
		t.Error("what was taken was written over")
	}
	p.Release()
	if err := from.Cleanup(t.Context(), "r2"); err != nil {
		t.Fatal(err)
	}
	h.wantEmpty(t)
}

// shelf has a thin client give the host a shelf, as a Go node does.
func (c *thinClient) shelf() (own *shelf.Shelf, first uint64) {
	c.t.Helper()
	mem, err := shmstore.NewSegment("arena", 1<<16)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(mem.Close)
	c.sendFD(&wire.Offer{Segment: 1, Bytes: 1 << 16}, mem.FD())
	own, err = shelf.New()
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(own.Close)
	c.sendFD(&wire.Shelf{Token: 1, Segment: 1}, own.FD())
	first = c.await(wire.KindShelved).(*wire.Shelved).First
	own.Begin(first)
	return own, first
}

func (c *thinClient) sendFD(m wire.Message, fd int) {
	c.t.Helper()
	packet, err := wire.Append(nil, m, 1)
	if err == nil {
		err = c.conn.Send(packet, []int{fd})
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func shelveOf(entry uint64, key string) *wire.Shelve {
	return &wire.Shelve{Entry: entry, Owner: 1, Put: uint32(entry), Size: 100, From: exchangeEdge.From, To: exchangeEdge.To, Key: key}
}

// TestBadShelves: a client that does with its shelf what it must not is refused, and told.
func TestBadShelves(t *testing.T) {
	for name, bad := range map[string]struct {
		want string
		do   func(c *thinClient)
	}{
		"none":           {"or there is none", func(c *thinClient) { c.send(shelveOf(1, "k")) }},
		"two":            {"or it is the second", func(c *thinClient) { s, _ := c.shelf(); c.sendFD(&wire.Shelf{Token: 2, Segment: 1}, s.FD()) }},
		"no memory":      {"which was not offered", func(c *thinClient) { c.sendFD(&wire.Shelf{Token: 2, Segment: 9}, 0) }},
		"another number": {"this is not how a shelf is used", func(c *thinClient) { _, first := c.shelf(); c.send(shelveOf(first+shelf.Numbers, "k")) }},
		"the same number": {"this is not how a shelf is used", func(c *thinClient) {
			_, first := c.shelf()
			c.send(shelveOf(first+1, "k"))
			c.send(shelveOf(first+1, "k"))
		}},
		"beyond its memory": {"of a segment of 65536", func(c *thinClient) {
			_, first := c.shelf()
			m := shelveOf(first+1, "k")
			m.Offset = 1 << 16
			c.send(m)
		}},
		"a bad key": {"contains a slash", func(c *thinClient) { _, first := c.shelf(); c.send(shelveOf(first+1, "a/b")) }},
		"for nobody": {"is nothing for a shelf", func(c *thinClient) {
			_, first := c.shelf()
			m := shelveOf(first+1, "k")
			m.Owner = wire.LastingOwner
			c.send(m)
		}},
		"no shelf": {"open shelf", func(c *thinClient) {
			mem, err := shmstore.NewSegment("arena", shelf.Bytes)
			if err != nil {
				c.t.Fatal(err)
			}
			c.t.Cleanup(mem.Close)
			c.sendFD(&wire.Offer{Segment: 1, Bytes: shelf.Bytes}, mem.FD())
			c.sendFD(&wire.Shelf{Token: 1, Segment: 1}, mem.FD())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			h := exchanging(t, bus.Options{})
			c := dialThin(t, h.path)
			bad.do(c)
			if m := c.await(wire.KindRefuse).(*wire.Refuse); m.Code != wire.CodeProtocol || !strings.Contains(m.Text, bad.want) {
				t.Errorf("refused with %v, %q; want %q", m.Code, m.Text, bad.want)
			}
			h.wantEmpty(t)
		})
	}
}

// TestShelfLies: a client that says that it has put what it has not, or that it has taken what
// it has not, or that has everything locked, harms nobody but itself.
func TestShelfLies(t *testing.T) {
	h := exchanging(t, bus.Options{})
	n, other := h.exchange(t), h.exchange(t)
	liar := dialThin(t, h.path)
	own, first := liar.shelf()
	own.Publish(first + 7)
	wantNothing(t, n, "k") // in the end
	wantNothing(t, n, "k")
	liar.send(shelveOf(first+7, "k"))
	p, err := n.Await(t.Context(), exchangeEdge, "k", nil)
	if err != nil {
		t.Fatal(err)
	}
	p.Release()

	onShelf(t, n, other)
	meta := putAs(t, n, "large", payloadOf("large"))
	var entry uint64
	if _, err := fmt.Sscanf(fmt.Sprint(meta["entry"]), "%x", &entry); err != nil {
		t.Fatal(err)
	}
	liar.send(&wire.Taken{Entries: []uint64{entry, 0, entry + 1, 1 << 63}})
	liar.send(&wire.Taken{Flags: wire.TakenOver, Entries: []uint64{entry, entry + 1}})
	liar.send(&wire.Taken{Flags: wire.TakenAll, Entries: []uint64{entry, first}})
	liar.send(fetchOf(5, "nothing", 0))
	liar.await(wire.KindFailed) // it was heard
	getBy(t, other, "large", meta).Release()

	// One that was told of the shelf, and locks all of it.
	putAs(t, n, "mine", payloadOf("large"))
	liar.send(fetchOf(6, "mine", wire.FetchShelf))
	m, fd := liar.awaitFD(wire.KindShelfAt)
	taker, err := shelf.Open(fd, m.(*wire.ShelfAt).First)
	if err != nil {
		t.Fatal(err)
	}
	defer taker.Close()
	liar.await(wire.KindFetched)
	for i := range uint64(100) {
		taker.Claim(entry + i)
	}
	getBy(t, other, "free", putAs(t, other, "free", payloadOf("large"))).Release()
	putAs(t, n, "locked", payloadOf("large"))
	if err := n.Cleanup(t.Context(), "locked"); err != nil {
		t.Error(err)
	}
}

// TestShelfFoundByKey: who asks the host for a key gets what was put before, although the host
// has not read of it yet.
func TestShelfFoundByKey(t *testing.T) {
	const rounds, puts = 10, 100
	h := &hosted{path: t.TempDir() + "/bus.sock"}
	cmd := h.hostAlone(t)
	from, to := h.exchange(t), h.exchange(t)
	onShelf(t, from, to)
	for range rounds {
		stopProcess(t, cmd.Process)
		for i := range puts {
			putAs(t, from, fmt.Sprint("key", i), make([]byte, 1000))
		}
		got := make(chan error)
		go func() {
			p, err := to.Get(context.Background(), exchangeEdge, fmt.Sprint("key", puts-1), nil)
			if err == nil {
				p.Release()
			}
			got <- err
		}()
		if err := cmd.Process.Signal(syscall.SIGCONT); err != nil {
			t.Fatal(err)
		}
		if err := <-got; err != nil {
			t.Fatalf("what was put is not found: %v", err)
		}
		for i := range puts - 1 {
			if err := from.Cleanup(t.Context(), fmt.Sprint("key", i)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestShelfIsFull: what finds no slot is placed, and slots are used again.
func TestShelfIsFull(t *testing.T) {
	const values = shelf.Slots + 100
	h := exchanging(t, bus.Options{})
	from, to := h.exchange(t), h.exchange(t)
	onShelf(t, from, to)
	want := func(i int) []byte { return bytes.Repeat([]byte{byte(i)}, 600+i) }
	for range 2 {
		var all [values]connector.Metadata
		on := 0
		for i := range all {
			all[i] = putAs(t, from, fmt.Sprint("key", i), want(i))
			if bus.OnShelf(to, all[i]) {
				on++
			}
		}
		if on < shelf.Slots/2 || on > shelf.Slots { // some slots may not have come back yet
			t.Errorf("%d of %d values are on the shelf", on, values)
		}
		for i, meta := range all {
			p := getBy(t, to, fmt.Sprint("key", i), meta)
			if !bytes.Equal(p.Bytes(), want(i)) {
				t.Fatalf("value %d is another", i)
			}
			p.Release()
		}
		h.wantEmpty(t)
	}
}

// TestReadersAreBounded: a node that the host has no descriptor for goes on asking, until another
// is gone.
func TestReadersAreBounded(t *testing.T) {
	h := exchanging(t, bus.Options{})
	bus.SetWitnesses(h.server, 1)
	from := h.exchange(t)
	one := h.join(t, bus.JoinOptions{ExchangeStore: exchangeStore})
	onShelf(t, from, one.Exchange())
	other := h.exchange(t)
	for range 10 {
		meta := putAs(t, from, "large", payloadOf("large"))
		getBy(t, other, "large", meta).Release()
		if bus.OnShelf(other, meta) {
			t.Fatal("the host has descriptors for one more than it may have")
		}
	}
	if err := one.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	onShelf(t, from, other)
	h.wantEmpty(t)
}

// TestNoMemoryForALock: who asks for a value that the host cannot lock is told so, and gets it
// later.
func TestNoMemoryForALock(t *testing.T) {
	h := exchanging(t, bus.Options{})
	some := bus.PutWithoutLocks(t, h.bus, exchangeEdge, "large", payloadOf("large"))
	for name, e := range map[string]connector.Transport{"node": h.exchange(t), "host": h.bus.Exchange()} {
		for how, get := range map[string]func(context.Context, connector.Edge, string, connector.Metadata) (connector.Payload, error){"get": e.Get, "await": e.Await} {
			if _, err := get(t.Context(), exchangeEdge, "large", nil); !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), "get it again") {
				t.Errorf("%s of a %s: %v", how, name, err)
			}
		}
	}
	some()
	get(t, h.exchange(t), "large").Release()
}
