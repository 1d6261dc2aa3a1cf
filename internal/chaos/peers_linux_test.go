package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// caseEnv names what a bad peer does.
const caseEnv = "OMNIBUS_CHAOS_CASE"

// badPeers are processes that break the protocol, by name.
var badPeers = map[string]struct {
	do func(p *peerEnd) error
	// log is a part of the line that the host logs, beside the process id; told is
	// a part of the text that the host sends to the peer; empty: it sends none.
	log, told string
	// takesWork says that the peer serves the stage until it has a delivery.
	takesWork bool
}{
	"garbage": {
		do:  func(p *peerEnd) error { return p.raw([]byte(strings.Repeat("garbage ", 32))) },
		log: "the first message must be hello", told: "the first message must be hello",
	},
	"half a hello": {
		do:  func(p *peerEnd) error { b := encode(p.hello()); return p.raw(b[:len(b)/2]) },
		log: "the first message must be hello", told: "the first message must be hello",
	},
	"half a message": {
		do: func(p *peerEnd) error {
			b := encode(&wire.Finish{Delivery: 1, Text: "text"})
			return p.join(b[:len(b)/2])
		},
		log: "finish", told: "finish",
	},
	"unknown kind": {
		do:  func(p *peerEnd) error { return p.join([]byte{8, 0, 0, 0, 99, 9, 0, 0}) },
		log: "no message has this kind", told: "no message has this kind",
	},
	"not for the host": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Drain{})) },
		log: "is not for the host", told: "is not for the host",
	},
	"version": {
		do: func(p *peerEnd) error {
			h := p.hello()
			h.VersionMin, h.VersionMax = 77, 99
			return p.raw(encode(h))
		},
		log: "speaks versions 77 to 99", told: "speaks versions 77 to 99",
	},
	"another bus": {
		do:  func(p *peerEnd) error { h := p.hello(); h.Bus = "tram"; return p.raw(encode(h)) },
		log: `not \"tram\"`, told: `not "tram"`,
	},
	"wrong pid": {
		do:  func(p *peerEnd) error { h := p.hello(); h.PID++; return p.raw(encode(h)) },
		log: "another pid namespace", told: "another pid namespace",
	},
	"forged delivery": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Finish{Delivery: 9999})) },
		log: "delivery 9999", told: "delivery 9999",
	},
	"forged release": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Release{Delivery: 9999})) },
		log: "delivery 9999", told: "delivery 9999",
	},
	"message that is cut short": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Put{Put: 1, Source: 1})[:40]) },
		log: "where its header has", told: "where its header has",
	},
	"forged source": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.CloseSend{Source: 1 << 30})) },
		log: "no source 1073741824", told: "no source 1073741824",
	},
	"source of another": { // lower numbers may be in use
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Ended{Task: 1 << 30})) },
		log: "no source 1073741824", told: "no source 1073741824",
	},
	"unknown segment": {
		do:  unknownSegment,
		log: "segment 77 was not offered", told: "segment 77 was not offered",
	},
	"descriptor that belongs to no message": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.Leave{}), 0) },
		log: "descriptors", told: "descriptors",
	},
	"segment without seals": {
		do:  func(p *peerEnd) error { return p.offer(1<<16, 1<<16, 0) },
		log: "seal", told: "seal",
	},
	"segment that is cut short": {
		do:  func(p *peerEnd) error { return p.offer(1<<12, 1<<16, allSeals) },
		log: "4096 bytes instead of 65536", told: "4096 bytes instead of 65536",
	},
	"lane without seals": {
		do:  func(p *peerEnd) error { return p.sendWithMemory(1<<16+2<<12, 0, &wire.Lane{Capacity: 1 << 16}) },
		log: "seal", told: "seal",
	},
	"lane of another capacity": {
		do:  func(p *peerEnd) error { return p.joinWithLanes(1 << 20) },
		log: "a lane of 1048576 bytes", told: "a lane of 1048576 bytes",
	},
	"lane that comes twice": {
		do:  func(p *peerEnd) error { return p.joinWithLanes(1<<16, 1<<16) },
		log: "sends the memory of its lane once", told: "sends the memory of its lane once",
	},
	"packet after frames that are not there": {
		do: func(p *peerEnd) error {
			return errors.Join(p.joinWithLanes(1<<16), p.raw(encode(&wire.After{Frames: 7})))
		},
		log: "after frame 7, and 0 have come", told: "after frame 7, and 0 have come",
	},
	"packet after frames of no lane": {
		do:  func(p *peerEnd) error { return p.join(encode(&wire.After{Frames: 7})) },
		log: "after is not for the host", told: "after is not for the host",
	},
	"silence": {
		do:  func(*peerEnd) error { return nil },
		log: "the first message must be hello", told: "the first message must be hello",
	},
	"does not read":           {do: neverRead, log: "made no progress"},
	"hangs up and lives on":   {do: hangUp, log: "closed its connection, and lives on", takesWork: true},
	"dies and leaves an heir": {do: dieWithHeir, log: "died"},
}

const allSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL

// TestBadPeers has every bad peer attach to a host at which a good request is
// in flight. The host logs the mistake of each peer, and the good request
// completes.
func TestBadPeers(t *testing.T) {
	for name, tc := range badPeers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testBadPeer(t, name, tc.log, tc.told, tc.takesWork)
		})
	}
}

func testBadPeer(t *testing.T, name, wantLog, wantTold string, takesWork bool) {
	h := openTestHost(t)
	good := []*bus.Request{h.begin(t)}
	told := make(chan string, 1)
	c, err := start(role{name: name, env: []string{roleEnv + "=bad peer", caseEnv + "=" + name}}, h.server.Addr(), "", func(line string) {
		select {
		case told <- line:
		default:
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.kill(); <-c.done }()

	if takesWork {
		<-told
		for h.server.Serving("d") < 2 { // the host answers the peer before it gives it work
			time.Sleep(pollPause)
		}
		for range 2 * stageInflight { // the peer gets some of them
			good = append(good, h.begin(t))
		}
	}
	ok := func() bool {
		for line := range strings.Lines(h.log.String()) {
			if strings.Contains(line, fmt.Sprint(c.pid())) && strings.Contains(line, wantLog) {
				return true
			}
		}
		return false
	}
	for limit := time.Now().Add(patience); !ok() && time.Now().Before(limit); {
		time.Sleep(pollPause)
	}
	if !ok() {
		t.Errorf("the host logs no line with process %d and %q:\n%s\npeer: %s", c.pid(), wantLog, h.log.String(), c.stderr.String())
	}
	if wantTold != "" {
		select {
		case line := <-told:
			if !strings.Contains(line, wantTold) {
				t.Errorf("the peer was told %q, without %q", line, wantTold)
			}
		case <-time.After(patience):
			t.Errorf("the peer was told nothing: %s", c.stderr.String())
		}
	}
	for _, r := range good[1:] {
		h.finish(t, r)
	}
	if takesWork && !closed(c.dead) && len(h.server.Processes()) < 2 {
		t.Error("the host has reclaimed deliveries that the live process may still read")
	}
	_ = c.stdin.Close()
	select {
	case <-c.done:
	case <-time.After(patience):
		t.Fatalf("the peer does not end: %s", c.stderr.String())
	}
	for limit := time.Now().Add(patience); len(h.server.Processes()) > 1; time.Sleep(pollPause) {
		if time.Now().After(limit) {
			t.Fatalf("the host has not removed the peer: %+v", h.server.Processes())
		}
	}
	h.finish(t, good[0])
	if vs := h.server.Check(); len(vs) > 0 {
		t.Errorf("arenas: %v", vs)
	}
}

// testHost is a host with one good process, for bad ones to attach to.
type testHost struct {
	bus    *bus.Bus
	server *host.Server
	log    tail
}

func openTestHost(t *testing.T) *testHost {
	t.Helper()
	h := &testHost{}
	opts := busOptions()
	opts.Store.ArenaBytes = 16 << 20
	opts.OnStall = func([]bus.Stall) {}
	opts.Logger = slogTo(&h.log)
	var err error
	h.bus, err = bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "d", Remote: &bus.Remote{}, Replicas: 2, State: bus.StateNone}},
	}, opts)
	if err != nil {
		t.Fatal(err)
	}
	h.server, err = host.Listen(h.bus, filepath.Join(t.TempDir(), "s"), host.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := node.Join(t.Context(), "good", node.JoinOptions{Socket: h.server.Addr()})
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = n.Serve(context.Background(), stageSpec("d", n.Exchange())) }() // ends with the node
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := errors.Join(n.Close(ctx), h.server.Close(ctx), h.bus.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	for h.server.Serving("d") == 0 {
		time.Sleep(pollPause)
	}
	return h
}

const goodTag = 8 // its first payload is too large for a message

// begin starts a request that stays open.
func (h *testHost) begin(t *testing.T) *bus.Request {
	t.Helper()
	r, err := h.bus.Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Input(t.Context()).EmitBytes(payload(goodTag, levelA, 0)); err != nil {
		t.Fatal(err)
	}
	return r
}

// finish sends more inputs, and checks all results.
func (h *testHost) finish(t *testing.T, r *bus.Request) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for seq := uint64(1); seq < 4; seq++ {
		if err := r.Input(ctx).EmitBytes(payload(goodTag, levelA, seq)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.CloseSend(ctx); err != nil {
		t.Fatal(err)
	}
	var next uint64
	for d, err := range r.Results(ctx) {
		if err == nil {
			_, err = verify(d.Bytes(), levelA, next)
		}
		if err != nil {
			t.Fatalf("a good request was harmed: result %d: %v\n%s", next, err, h.log.String())
		}
		next++
	}
	if next != 4 {
		t.Fatalf("a good request was harmed: %d of 4 results", next)
	}
}

// peerEnd is a bad peer's end of its connection.
type peerEnd struct {
	path string
	conn *peer.Conn
	in   *peer.Receiver
}

// runBadPeer is the process of a bad peer. It prints the text with which the host
// refuses it, and stays alive until its standard input ends.
func runBadPeer() error {
	p := &peerEnd{path: os.Getenv(node.EnvSocket)}
	if heir := os.NewFile(3, "connection"); os.Getenv(caseEnv) == "heir" {
		return inherit(heir)
	}
	var err error
	if p.conn, err = peer.Dial(context.Background(), p.path, peer.DialOptions{}); err != nil {
		return err
	}
	p.in = peer.NewReceiver(p.conn)
	if err := badPeers[os.Getenv(caseEnv)].do(p); err != nil {
		return err
	}
	if badPeers[os.Getenv(caseEnv)].told != "" {
		for {
			m, err := p.next()
			if err != nil {
				return err
			}
			if r, ok := m.(*wire.Refuse); ok {
				fmt.Println(r.Text)
				break
			}
		}
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it
	return nil
}

func (p *peerEnd) next() (wire.Message, error) {
	h, body, fds, err := p.in.Next()
	if err != nil {
		return nil, err
	}
	m, err := wire.Parse(h, body)
	if l, ok := m.(*wire.Lane); ok && err == nil {
		_ = p.conn.OpenLane(l, fds[0], lane.Options{}) // fails if this side has shared no lane
		return m, nil
	}
	process.CloseAll(fds)
	return m, err
}

func (p *peerEnd) hello() *wire.Hello {
	return &wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid()), Name: "bad"}
}

func encode(m wire.Message, fds ...int) []byte {
	b, err := wire.Append(nil, m, len(fds))
	if err != nil {
		panic(err)
	}
	return b
}

// raw sends bytes.
func (p *peerEnd) raw(b []byte, fds ...int) error { return p.conn.Send(b, fds) }

// join does the handshake by the protocol, and then sends bytes.
func (p *peerEnd) join(b []byte, fds ...int) error {
	if err := p.raw(encode(p.hello())); err != nil {
		return err
	}
	m, err := p.next()
	if _, ok := m.(*wire.Welcome); !ok || err != nil {
		return fmt.Errorf("welcome: %v %w", m, err)
	}
	return p.raw(b, fds...)
}

// joinWithLanes joins, and shares the memory of its lane with each of these capacities, one after the other.
func (p *peerEnd) joinWithLanes(capacities ...uint32) error {
	_, fd, err := p.conn.ShareLane()
	if err != nil {
		return err
	}
	err = p.join(encode(&wire.Lane{Capacity: capacities[0]}, fd), fd)
	for _, c := range capacities[1:] {
		err = errors.Join(err, p.raw(encode(&wire.Lane{Capacity: c}, fd), fd))
	}
	return err
}

// offer offers a segment whose size is said bytes in the message, possibly without seals.
func (p *peerEnd) offer(size, said int64, seals int) error {
	return p.sendWithMemory(size, seals, &wire.Offer{Segment: 1, Bytes: uint64(said)})
}

// sendWithMemory joins, and sends a message with new memory.
func (p *peerEnd) sendWithMemory(size int64, seals int, m wire.Message) error {
	fd, err := unix.MemfdCreate("offer", unix.MFD_ALLOW_SEALING|unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.Fallocate(fd, 0, 0, size); err != nil {
		return err
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return err
	}
	return p.join(encode(m, fd), fd)
}

// unknownSegment sends, for a request of its own, a payload of a segment that
// it never offered.
func unknownSegment(p *peerEnd) error {
	if err := p.join(encode(&wire.Submit{Source: wire.OwnSource | 1})); err != nil {
		return err
	}
	return p.raw(encode(&wire.Put{Source: wire.OwnSource | 1, Segment: 77, Size: 1}))
}

// neverRead asks for much and reads nothing of it.
func neverRead(p *peerEnd) error {
	joined := p.join(encode(&wire.Call{Token: 0, Method: "status"}))
	for token := uint32(1); joined == nil && token < wire.MaxQuestions/2; token++ {
		if p.raw(encode(&wire.Call{Token: token, Method: "status"})) != nil {
			break // the host has closed the connection
		}
	}
	return joined
}

// hangUp takes work and closes the connection.
func hangUp(p *peerEnd) error {
	if err := p.join(encode(&wire.Serve{Token: 1, Stage: "d"})); err != nil {
		return err
	}
	for {
		m, err := p.next()
		if err != nil {
			return err
		}
		switch m.(type) {
		case *wire.Serving:
			fmt.Println("serving")
		case *wire.Deliver:
			return p.conn.Close()
		}
	}
}

// dieWithHeir gives its connection to a child, and dies.
func dieWithHeir(p *peerEnd) error {
	conn, err := net.Dial("unixpacket", p.path)
	if err != nil {
		return err
	}
	f, err := conn.(*net.UnixConn).File()
	if err != nil {
		return err
	}
	if _, err := conn.Write(encode(p.hello())); err != nil {
		return err
	}
	if _, err := conn.Read(make([]byte, wire.MaxPacket)); err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), caseEnv+"=heir")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stdin, cmd.Stderr = os.Stdin, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// inherit uses a connection whose owner is dead, until the host closes it.
func inherit(f *os.File) error {
	conn, err := net.FileConn(f)
	if err != nil {
		return err
	}
	for err == nil {
		if _, err = conn.Read(make([]byte, wire.MaxPacket)); err == nil {
			_, err = conn.Write(encode(&wire.Call{Token: 1, Method: "status"}))
		}
	}
	return nil
}
