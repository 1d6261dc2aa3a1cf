package node

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/lane"
)

// attached is a host with one stage, "m", and a node that serves it.
type attached struct {
	bus    *bus.Bus
	server *host.Server
	node   *Node
	link   *link
}

// attach opens a host, and a node in this process that serves its stage.
func attach(t testing.TB, window int, handle func(*bus.Task, *bus.Delivery) error) *attached {
	t.Helper()
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{{Name: "m", Remote: &bus.Remote{}, State: bus.StateRequest}},
		Edges:  []bus.Edge{{To: "m", Window: window}, {From: "m", Window: window}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}, MaxRequests: 4})
	if err != nil {
		t.Fatal(err)
	}
	a := &attached{bus: b}
	t.Cleanup(func() {
		if err := b.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the bus: %v", err)
		}
	})
	path := filepath.Join(t.TempDir(), "bus.sock")
	if a.server, err = host.Listen(b, path, host.ListenOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.server.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the server: %v", err)
		}
	})
	a.node = joinTo(t, path)
	if a.link, err = a.node.awaitLink(t.Context()); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = a.node.Serve(context.Background(), bus.StageSpec{Name: "m", State: bus.StateRequest, Handle: handle}) // ends with the node
	}()
	return a
}

// joinTo makes this process a node.
func joinTo(t testing.TB, path string) *Node {
	t.Helper()
	n, err := Join(t.Context(), "node", JoinOptions{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(testbus.Soon(t)); err != nil {
			t.Errorf("close the node: %v", err)
		}
	})
	return n
}

// task waits for the node's task.
func (a *attached) task(t testing.TB) *nodeTask {
	t.Helper()
	var task *nodeTask
	testbus.Await(t, func() bool {
		tasks, _ := a.link.work.list()
		for _, task = range tasks {
			return true
		}
		return false
	})
	return task
}

// openSilentDirect has the outputs of a task go to a test peer. The host does not know of it, and
// gets no length of their stream: TestStreamLengthIsSent tests the length.
func (a *attached) openSilentDirect(t testing.TB, node uint32, task *nodeTask) {
	t.Helper()
	task.silence(t)
	a.openDirect(t, node, task)
}

// silence has a task send the host no further message about its streams.
func (t *nodeTask) silence(tb testing.TB) {
	tb.Helper()
	silent := silentLink(tb)
	t.out.mu.Lock()
	t.out.link = silent
	t.out.mu.Unlock()
}

// openDirect has the outputs of a task go to a peer.
func (a *attached) openDirect(t testing.TB, node uint32, task *nodeTask) {
	t.Helper()
	p := a.link.peers.sender(node)
	testbus.Await(t, func() bool { return p.connection() != nil })
	if err := a.link.handle(&wire.Direct{Source: task.id, Peer: node, PeerSource: 77}, nil); err != nil {
		t.Fatal(err)
	}
}

// silentLink is a link that can send nothing.
func silentLink(t testing.TB) *link {
	t.Helper()
	node, host, err := peer.Pair()
	if err != nil {
		t.Fatal(err)
	}
	sender, err := peer.NewSender(node, peer.SenderOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(sender.Close(), node.Close(), host.Close()); err != nil {
		t.Fatal(err)
	}
	return &link{sender: sender}
}

// testPeer is a peer of a node: a process that does nothing, and the other end of the node's
// connection to it, which the test holds.
type testPeer struct {
	*peerLink
	t         testing.TB
	conn      *peer.Conn
	out       *peer.Sender
	in        *peer.Receiver
	listening sync.WaitGroup    // counts the goroutine of listen
	received  chan wire.Message // messages from the node
	ended     chan error
	proc      *exec.Cmd
	mem       *shmstore.Segment // announced to the node as segment 1
}

// testPeerNode is the first number of nodes that the host does not know.
const testPeerNode = 1000

// sleepingProcess starts a process that lives until it is killed.
func sleepingProcess(t testing.TB) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("sleep", "3600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return cmd
}

// introduceTo introduces a process to the node, as the host does. It returns the other end of their
// connection.
func introduceTo(t testing.TB, l *link, node uint32, cmd *exec.Cmd) *peer.Conn {
	t.Helper()
	ends, err := peer.Sockets()
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.PidfdOpen(cmd.Process.Pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := peer.Open(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	m := &wire.Introduce{Peer: node, PID: uint32(cmd.Process.Pid), Name: "hand"}
	if err := l.handle(m, []int{ends[0], fd}); err != nil {
		t.Fatal(err)
	}
	return conn
}

// meetTestPeer introduces a test peer to the node.
func (a *attached) meetTestPeer(t testing.TB) *testPeer {
	t.Helper()
	proc := sleepingProcess(t)
	h := newTestPeer(t, introduceTo(t, a.link, testPeerNode, proc))
	h.proc = proc
	h.meet()
	h.peerLink = a.link.peers.receiver(testPeerNode)
	var err error
	if h.mem, err = shmstore.NewSegment("hand", 1<<16); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.mem.Close)
	if err := h.out.Queue(&wire.Segment{Segment: 1, Bytes: uint64(h.mem.Size())}, h.mem.FD()); err != nil {
		t.Fatal(err)
	}
	return h
}

// newTestPeer is the test's end of a connection.
func newTestPeer(t testing.TB, conn *peer.Conn) *testPeer {
	t.Helper()
	h := &testPeer{t: t, conn: conn, in: peer.NewReceiver(conn), received: make(chan wire.Message, 1<<16), ended: make(chan error, 1)}
	var err error
	if h.out, err = peer.NewSender(conn, peer.SenderOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.hangUp)
	return h
}

// meet exchanges lanes with the node.
func (h *testPeer) meet() {
	h.t.Helper()
	own, fd, err := h.conn.ShareLane()
	if err == nil {
		err = h.out.Queue(own, fd)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	head, body, fds, err := h.in.Next()
	if err != nil || head.Kind != wire.KindLane {
		h.t.Fatalf("the node begins with %v: %v", head.Kind, err)
	}
	var m wire.Lane
	if err := wire.Decode(body, &m); err != nil {
		h.t.Fatal(err)
	}
	if err := h.conn.OpenLane(&m, fds[0], lane.Options{}); err != nil {
		h.t.Fatal(err)
	}
}

// hangUp closes the test's end. It may be called twice.
func (h *testPeer) hangUp() {
	_ = h.out.Close()
	_ = h.conn.Close()
	h.listening.Wait()
	h.in.Close()
}

// listen receives the node's messages.
func (h *testPeer) listen() { h.listening.Go(func() { h.ended <- h.in.Serve(h.receive) }) }

func (h *testPeer) receive(head wire.Header, body []byte, fds []int) error {
	process.CloseAll(fds)
	m, err := wire.Parse(head, bytes.Clone(body))
	if err == nil && head.Kind != wire.KindSegment && head.Kind != wire.KindForget {
		h.received <- m
	}
	return err
}

func (h *testPeer) sendMessages(ms ...wire.Message) {
	h.t.Helper()
	for _, m := range ms {
		if err := h.out.Queue(m); err != nil {
			h.t.Fatal(err)
		}
	}
}

// nextMessage is the next message from the node.
func (h *testPeer) nextMessage() wire.Message {
	h.t.Helper()
	select {
	case m := <-h.received:
		return m
	case err := <-h.ended:
		h.t.Fatalf("the connection ended with %v", err)
	case <-time.After(testbus.Patience):
		h.t.Fatal("no message from the node")
	}
	return nil
}

// unknownSource is a source that no node has.
const unknownSource = 1 << 31

// handled returns when the node has handled all earlier messages.
func (h *testPeer) handled() {
	h.t.Helper()
	h.sendMessages(&wire.Deliver{Source: unknownSource, Delivery: unknownSource, Flags: wire.FlagInline})
	for {
		if f, ok := h.nextMessage().(*wire.Finish); ok && f.Delivery == unknownSource {
			return
		}
	}
}

// large is a delivery whose payload lies in the test peer's memory.
func (h *testPeer) large(source, id uint32, seq uint64) *wire.Deliver {
	return &wire.Deliver{Source: source, Delivery: id, Seq: seq, Segment: 1, Offset: 4096, Size: 4096, Codec: 1}
}

// small is a delivery whose payload is in the message.
func small(source, id uint32, seq uint64) *wire.Deliver {
	return &wire.Deliver{Source: source, Delivery: id, Seq: seq, Flags: wire.FlagInline, Payload: []byte{byte(seq)}, Size: 1, Codec: 1}
}

// die kills the process.
func (h *testPeer) die() {
	h.t.Helper()
	if err := h.proc.Process.Kill(); err != nil {
		h.t.Fatal(err)
	}
}

// holds are the deliveries that the peer holds, as the node sees it.
func (h *testPeer) holds() (all []accounts.Hold) {
	h.account.Each(func(o *accounts.Hold) { all = append(all, *o) })
	return all
}

// heldDelivery is a delivery that the peer holds, as the node has it, and how many of its bytes are
// still in use.
func (h *testPeer) heldDelivery(number uint32) (d *bus.Delivery, held int) {
	h.t.Helper()
	h.account.Inspect(number, func(o *accounts.Hold) {
		if o != nil {
			d = o.Delivery.(*sentDelivery).d
			held = len(d.Bytes())
		}
	})
	if d == nil {
		h.t.Fatalf("the peer does not hold delivery %d", number)
	}
	return d, held
}

// emit sends one input and receives one result.
func emit(t testing.TB, r *bus.Request, payload []byte) *bus.Delivery {
	t.Helper()
	if err := r.Input(t.Context()).EmitBytes(payload); err != nil {
		t.Fatal(err)
	}
	d, err := r.Recv(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// mustEnd requires that a request has no more results and completed.
func mustEnd(t testing.TB, r *bus.Request) {
	t.Helper()
	if _, err := r.Recv(t.Context()); !errors.Is(err, io.EOF) {
		t.Fatalf("the results end with %v", err)
	}
}

// requestOf is the node's remoteRequest of a caller's request.
func (a *attached) requestOf(t testing.TB, r *bus.Request) *remoteRequest {
	t.Helper()
	_, requests := a.link.work.list()
	for _, rr := range requests {
		if rr.req == r {
			return rr
		}
	}
	t.Fatal("the node does not know the request")
	return nil
}
