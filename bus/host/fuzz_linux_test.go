package host_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// fuzzTask and fuzzRequest are the sources that fuzzed packets name: see renumber.
const (
	fuzzRequest = wire.OwnSource | 1 // a number that the client may give a request
	fuzzTask    = 1                  // first task of the client, once it serves
)

// Size of the memory whose descriptor the client sends, and name that another node has published.
const (
	fuzzMemory = 1 << 16
	fuzzName   = 7
)

// renumber raises small source numbers in a packet by last, so that the same packet names the next
// sources in each run. Bytes that are no packet stay as they are.
func renumber(p []byte, last uint32) []byte {
	var all []byte
	for rest := p; len(rest) > 0; {
		h, body, next, err := wire.Next(rest)
		var m wire.Message
		if err == nil {
			m, err = wire.Parse(h, body)
		}
		if err != nil {
			return append(all, rest...)
		}
		if source := sourceOf(m); source != nil && *source < 16 {
			*source += last
		}
		descriptors := h.Kind.Descriptors()
		if all, err = wire.Append(all, m, descriptors); err != nil {
			return p
		}
		rest = next
	}
	return all
}

// descriptorsOf returns how many descriptors the messages of a packet announce.
func descriptorsOf(p []byte) (n int) {
	for len(p) > 0 {
		h, _, rest, err := wire.Next(p)
		if err != nil {
			break
		}
		n, p = n+h.Descriptors, rest
	}
	return min(n, wire.MaxDescriptors)
}

// sourceOf returns the source field of a client's message; nil: it has none.
func sourceOf(m wire.Message) *uint32 {
	switch m := m.(type) {
	case *wire.Ended:
		return &m.Task
	case *wire.Put:
		return &m.Source
	case *wire.CloseSend:
		return &m.Source
	case *wire.AbortRequest:
		return &m.Source
	case *wire.Close:
		return &m.Source
	case *wire.Expecting:
		return &m.Source
	case *wire.Streamed:
		return &m.Source
	}
	return nil
}

// FuzzSession sends arbitrary packets to a host after the hello, while a stream of a node waits for a
// process to serve its stage. The host must stay intact and go on serving other processes.
func FuzzSession(f *testing.F) {
	packet := func(ms ...wire.Message) []byte {
		var p []byte
		for _, m := range ms {
			var err error
			descriptors := m.Kind().Descriptors()
			if p, err = wire.Append(p, m, descriptors); err != nil {
				f.Fatal(err)
			}
		}
		return p
	}
	serve := &wire.Serve{Token: 1, Stage: "m"}
	f.Add(packet(serve, &wire.Finish{Delivery: 1}, &wire.Ended{Task: fuzzTask}))
	f.Add(packet(serve, &wire.Finish{Delivery: 1, Flags: wire.FinishKeep}, &wire.Release{Delivery: 1}))
	f.Add(packet(serve, &wire.Finish{Delivery: 1, Code: wire.CodeInternal, Text: "no"}))
	f.Add(packet(serve, &wire.Put{Put: 1, Source: fuzzTask, Delivery: 1, Edge: wire.AllEdges, Flags: wire.FlagInline, Codec: 1, Size: 1, Payload: []byte("x")}))
	f.Add(packet(serve, &wire.Put{Put: 1, Source: fuzzTask, Delivery: 1, Edge: 0, Flags: wire.FlagForward, Codec: 1}))
	f.Add(packet(serve, &wire.Put{Put: 1, Source: fuzzTask, Edge: 0, Flags: wire.FlagInline, Codec: 1, Size: 1, Payload: []byte("x")}))
	f.Add(packet(&wire.Scoreboard{}, serve, &wire.Scoreboard{}))
	// Memory of the client: overlapping puts, puts outside it, puts in a forgotten segment, and puts
	// cut short.
	offer := &wire.Offer{Segment: 1, Bytes: fuzzMemory}
	at := func(put uint32, offset, size uint64) wire.Message {
		return &wire.Put{Put: put, Source: fuzzTask, Delivery: 1, Edge: wire.AllEdges, Codec: 1, Segment: 1, Offset: offset, Size: size}
	}
	f.Add(packet(serve, offer, at(1, 0, 1000), at(2, 2000, 1000), &wire.Finish{Delivery: 1}))
	f.Add(packet(serve, offer, at(1, 0, 1000), at(2, 999, 10)))
	f.Add(packet(serve, offer, at(1, 0, 1000), at(2, 0, 1000)))
	f.Add(packet(serve, offer, at(1, fuzzMemory-1, 2), at(2, 1<<64-1, 2)))
	f.Add(packet(serve, offer, at(1, 0, 1000), &wire.Forget{Segment: 1}, at(2, 2000, 1000)))
	f.Add(packet(serve, offer, &wire.Offer{Segment: 2, Bytes: fuzzMemory}, &wire.Offer{Segment: 3, Bytes: fuzzMemory}, &wire.Offer{Segment: 1, Bytes: fuzzMemory}))
	f.Add(packet(serve, at(1, 0, 0))[:40])
	f.Add(append(packet(serve), packet(at(1, 0, 0))[:20]...))
	submit := &wire.Submit{Source: fuzzRequest}
	f.Add(packet(submit, &wire.CloseSend{Source: fuzzRequest}, &wire.AbortRequest{Source: fuzzRequest}, &wire.Close{Source: fuzzRequest}))
	f.Add(packet(&wire.CloseSend{Source: fuzzTask}, &wire.AbortRequest{Source: fuzzTask}, &wire.Close{Source: fuzzTask}))
	f.Add(packet(submit, &wire.Put{Put: 1, Source: fuzzRequest, Edge: 0, Flags: wire.FlagInline, Codec: 1, Size: 1, Payload: []byte("x")}, submit)) // a number in use
	f.Add(packet(&wire.Submit{Source: fuzzTask}, &wire.Submit{}))                                                                                   // numbers without the bit
	ends := &wire.Serve{Token: 1, Stage: "m", Flags: wire.ServeEnds}
	f.Add(packet(ends, &wire.Finish{Delivery: 1}, &wire.Ended{Task: fuzzTask})) // before all inputs have arrived
	f.Add(packet(ends, &wire.Ended{Task: fuzzTask, Code: wire.CodeInternal}, &wire.Ended{Task: fuzzTask}, &wire.Ended{Task: fuzzTask}))
	f.Add(packet(&wire.Call{Token: 1, Method: "abort", Arguments: []byte(`{"request":1}`)}, &wire.Leave{}))
	// Direct paths.
	lanes := &wire.Lanes{}
	emit := func(put uint32) wire.Message {
		return &wire.Put{Put: put, Source: fuzzTask, Delivery: 1, Flags: wire.FlagInline, Codec: 1, Size: 1, Payload: []byte("x")}
	}
	f.Add(packet(lanes, serve, &wire.Expecting{Source: fuzzTask}, &wire.Expecting{Source: fuzzTask}))
	f.Add(packet(lanes, serve, emit(1), emit(2), emit(3), &wire.Streamed{Source: fuzzTask, Deliveries: 9, Bytes: 9}, &wire.Ended{Task: fuzzTask}))
	f.Add(packet(lanes, serve, emit(1), emit(2), &wire.Streamed{Source: fuzzTask, Deliveries: 1}, &wire.Streamed{Source: fuzzTask, Deliveries: 1<<64 - 1}))
	f.Add(packet(lanes, serve, emit(1), emit(2), &wire.Streamed{Source: fuzzTask, Deliveries: 2}, &wire.Streamed{Source: fuzzTask, Deliveries: 2}))
	f.Add(packet(lanes, serve, emit(1), &wire.Streamed{Source: fuzzTask, Edge: 7}, &wire.Streamed{Source: fuzzRequest}))
	f.Add(packet(lanes, &wire.Reported{Piece: []byte("{}")}))
	// The exchange.
	place := &wire.Place{Token: 1, Owner: 1, Flags: wire.FlagInline, Size: 1, From: "a", To: "b", Key: "k", Payload: []byte("x")}
	fetch := &wire.Fetch{Token: 2, From: "a", To: "b", Key: "k"}
	wait := &wire.Fetch{Token: 3, Flags: wire.FetchWait, From: "a", To: "b", Key: "k"}
	f.Add(packet(place, fetch, &wire.Finish{Delivery: 1}, fetch, wait, &wire.Cancel{Token: 3}))
	f.Add(packet(wait, place, &wire.Finish{Delivery: 1, Flags: wire.FinishUnread}, wait, wait))
	f.Add(packet(place, place, &wire.Cleanup{Token: 4, Owner: 1, Key: "k"}, place, &wire.Cleanup{Token: 5, Owner: 1}, place))
	f.Add(packet(serve, place, fetch, &wire.Finish{Delivery: 2, Flags: wire.FinishKeep}, &wire.Release{Delivery: 2}))
	f.Add(packet(&wire.Place{Token: 1, Segment: 1, Size: 1, From: "a", To: "b", Key: "k"}, &wire.Place{Put: 1, Segment: 1, Flags: wire.FlagOwn, Size: 1}))
	// The directory, and other messages with descriptors.
	publish := &wire.Publish{Token: 1, Number: 1, Size: 1 << 20}
	find := &wire.Find{Token: 2, Number: 1}
	f.Add(packet(publish, find, publish, &wire.Withdraw{Number: 1}, find, publish, &wire.Publish{Token: 3, Number: 2}))
	f.Add(packet(find, &wire.Find{Token: 2, Number: fuzzName}, &wire.Withdraw{Number: fuzzName}, &wire.Publish{Number: fuzzName, Size: 1}))
	f.Add(packet(&wire.Offer{Segment: 1, Bytes: fuzzMemory}, publish, &wire.Put{Put: 1, Segment: 1, Size: 1}, &wire.Forget{Segment: 1}, find, find))
	f.Add(packet(publish, &wire.Found{Token: 1}))
	f.Add([]byte("nonsense"))

	b := testbus.Open(f, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))),
		bus.Options{Store: shmstore.Options{ArenaBytes: 1 << 20, Memory: shmstore.Shared}})
	path := filepath.Join(f.TempDir(), "bus.sock")
	server, err := host.Listen(b, path, host.ListenOptions{})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if vs := server.Check(); len(vs) > 0 {
			f.Errorf("arenas: %v", vs)
		}
		if err := server.Close(context.Background()); err != nil {
			f.Errorf("close the server: %v", err)
		}
	})
	n, err := node.Join(f.Context(), "other", node.JoinOptions{Socket: path})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := n.Close(context.Background()); err != nil {
			f.Errorf("close the node: %v", err)
		}
	})
	mem, err := shmstore.NewSegment("fuzz", fuzzMemory)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(mem.Close)
	if err := n.Directory().Publish(f.Context(), lane.Name{Number: fuzzName}, mem.FD(), fuzzMemory); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, p []byte) {
		if len(p) == 0 || len(p) > wire.MaxPacket {
			t.Skip("no packet")
		}
		p = renumber(p, host.LastSource(server))
		r := testbus.StreamOf(t, n)
		for range 4 { // the host relays at least two, and asks for a direct path for the rest
			if err := r.Send(t.Context(), "input"); err != nil {
				t.Fatal(err)
			}
		}
		conn, err := peer.Dial(t.Context(), path, peer.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, packet := range [][]byte{
			packet(&wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid())}), p, packet(&wire.Bye{}),
		} {
			fds := slices.Repeat([]int{mem.FD()}, descriptorsOf(packet))
			if conn.Send(packet, fds) != nil {
				break // the host refused the client
			}
		}
		buf := make([]byte, wire.MaxPacket)
		if err := conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for err == nil { // until the host hangs up, after bye or after an invalid packet
			var n int
			var fds []int
			n, fds, err = conn.Receive(buf)
			for _, fd := range fds {
				_ = os.NewFile(uintptr(fd), "received").Close()
			}
			if os.IsTimeout(err) {
				t.Fatalf("the host neither answered nor hung up, %d bytes", n)
			}
		}
		if err := conn.Close(); err != nil {
			t.Fatal(err)
		}
		r.Close()
		testbus.Await(t, func() bool { return b.Stats().Exchange.Entries == 0 && testbus.Published(t, b) == 1 })
		found, err := n.Directory().Find(t.Context(), lane.Name{Number: fuzzName})
		if err != nil {
			t.Fatalf("what another process has published: %v", err)
		}
		_ = os.NewFile(uintptr(found.FD), "found").Close()
		if _, err := n.Call(t.Context(), "stats", nil); err != nil {
			t.Fatalf("another process: %v", err)
		}
	})
}
