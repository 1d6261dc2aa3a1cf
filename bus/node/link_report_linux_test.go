package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// newReporting makes a link with one peer, whose host is the test.
func newReporting(t *testing.T) *routingFixture {
	t.Helper()
	r := newRoutingFixture(t, 1)
	r.link.done = make(chan struct{})
	r.link.reports.askedAgain = make(chan struct{}, 1)
	r.link.work = linkWork{began: make(chan struct{}, 1), tasks: make(map[uint32]*nodeTask)}
	r.link.peers.senders = map[uint32]*peerLink{r.peer.node: r.peer}
	return r
}

// heldBytes is the size of a payload that the peer has.
const heldBytes = 100

// hold has the peer hold a payload.
func (r *routingFixture) hold() {
	r.t.Helper()
	h := &accounts.Hold{Source: 5, Bytes: heldBytes, At: time.Now(), Returned: func() {}}
	if err := r.peer.account.AddAndSend(h, accounts.Location{}, func(_, _ uint32) error { return nil }); err != nil {
		r.t.Fatal(err)
	}
}

// reported reads the next report to the host, and counts its messages.
func (r *routingFixture) reported() (report hostnode.Report, pieces int) {
	r.t.Helper()
	read := make(chan error, 1)
	go func() {
		var all []byte
		for {
			h, body, fds, err := r.host.Next()
			process.CloseAll(fds)
			var m wire.Reported
			if err == nil && h.Kind != wire.KindReported {
				err = fmt.Errorf("%v is no report", h.Kind)
			}
			if err == nil {
				err = wire.Decode(body, &m)
			}
			all = append(all, m.Piece...)
			if pieces++; err != nil || m.Flags&wire.ReplyMore == 0 {
				read <- errors.Join(err, json.Unmarshal(all, &report))
				return
			}
		}
	}()
	select {
	case err := <-read:
		if err != nil {
			r.t.Fatal(err)
		}
	case <-testbus.Soon(r.t).Done():
		r.t.Fatal("nothing is reported")
	}
	return report, pieces
}

// awaitEnd waits until the goroutine that reports has ended.
func awaitEnd(t *testing.T, l *link) {
	t.Helper()
	ended := make(chan struct{})
	go func() {
		l.reports.ended.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-testbus.Soon(t).Done():
		t.Fatal("the goroutine that reports goes on")
	}
}

// TestEmptyReportIsSentOnce: a node without work in flight sends one report in a lease, and its
// goroutine ends with the lease.
func TestEmptyReportIsSentOnce(t *testing.T) {
	r := newReporting(t)
	r.link.startReports(3 * pushEvery)
	awaitEnd(t, r.link)
	if kinds, _ := r.toHost(); len(kinds) != 1 || kinds[0] != wire.KindReported {
		t.Errorf("the host was told %v, want one report", kinds)
	}
	r.link.startReports(0) // it begins again
	awaitEnd(t, r.link)
	if kinds, _ := r.toHost(); len(kinds) != 1 || kinds[0] != wire.KindReported {
		t.Errorf("the host was told %v, want one report more", kinds)
	}
}

// TestReportsRepeat: a delivery that a peer holds is reported repeatedly, with a growing age, and
// its return is reported too.
func TestReportsRepeat(t *testing.T) {
	r := newReporting(t)
	r.hold()
	r.link.startReports(time.Hour)
	var last time.Duration
	for range 3 {
		got, _ := r.reported()
		if len(got.Held) != 1 || got.Held[0].Bytes != heldBytes || got.Held[0].Peer != r.peer.node || got.Held[0].Age <= last {
			t.Fatalf("reported are %+v, the last age was %v", got, last)
		}
		last = got.Held[0].Age
	}
	r.peer.account.GiveBackAll(accounts.All)
	for now, _ := r.reported(); !now.Empty(); now, _ = r.reported() {
	}
	close(r.link.done)
	awaitEnd(t, r.link)
}

// TestReportsBeginWithWork: the reporting goroutine of an idle node sleeps until a task begins.
func TestReportsBeginWithWork(t *testing.T) {
	r := newReporting(t)
	r.link.startReports(time.Hour)
	if got, _ := r.reported(); !got.Empty() {
		t.Fatalf("reported are %+v, want nothing", got)
	}
	r.link.work.stages = []*nodeStage{nil}
	if _, err := r.link.work.addTask(1, 0, func(*nodeStage) (*nodeTask, error) {
		r.hold()
		return nil, nil
	}); err != nil {
		t.Fatal(err)
	}
	r.link.work.forgetOver(1, false)
	if got, _ := r.reported(); len(got.Held) != 1 {
		t.Errorf("reported are %+v, want the held payload", got)
	}
	close(r.link.done)
	awaitEnd(t, r.link)
}

// TestRepeatedReportRequestIsAnswered: a host that asks again gets a full report, even if it has
// not changed.
func TestRepeatedReportRequestIsAnswered(t *testing.T) {
	r := newReporting(t)
	for range 3 {
		r.link.startReports(time.Hour)
		if got, _ := r.reported(); !got.Empty() {
			t.Fatalf("reported are %+v, want nothing", got)
		}
	}
	close(r.link.done)
	awaitEnd(t, r.link)
}

// TestHostThatDoesNotReadGetsNoReports: reports do not fill the backlog of a link.
func TestHostThatDoesNotReadGetsNoReports(t *testing.T) {
	r := newReporting(t)
	r.hold()
	for r.link.sender.Blocked() == 0 {
		r.link.Queue(&wire.Leave{Stages: []uint32{1}})
	}
	r.link.startReports(2 * pushEvery)
	awaitEnd(t, r.link)
	last := make(chan error, 1)
	go func() { last <- r.link.sender.Queue(&wire.Bye{}) }()
	for {
		h, _, fds, err := r.host.Next()
		process.CloseAll(fds)
		switch {
		case err != nil:
			t.Fatal(err)
		case h.Kind == wire.KindReported:
			t.Error("the host was sent a report")
		case h.Kind == wire.KindBye:
			if err := <-last; err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// TestReportInPieces: a large report is sent in several messages.
func TestReportInPieces(t *testing.T) {
	r := newReporting(t)
	for range 2 * wire.MaxPiece / len(`{"source":5,"edge":0,"peer":7,"seq":0,"bytes":100,"age_ns":1}`) {
		r.hold()
	}
	r.link.startReports(0)
	if report, pieces := r.reported(); pieces < 2 || len(report.Held) == 0 {
		t.Errorf("%d pieces have %d deliveries", pieces, len(report.Held))
	}
	awaitEnd(t, r.link)
}

// TestReportsEndWithTheLink: the end of the link waits for the reporting goroutine.
func TestReportsEndWithTheLink(t *testing.T) {
	path := t.TempDir() + "/bus.sock"
	ln, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	host := make(chan *peer.Conn, 1)
	go func() {
		conn, err := ln.Accept()
		if err == nil {
			var p []byte
			for _, m := range []wire.Message{&wire.Welcome{Version: wire.Version, Node: 1, Epoch: 1, Bus: "b"}, &wire.Report{Millis: 3_600_000}} {
				p, _ = wire.Append(p, m, 0)
			}
			err = conn.Send(p, nil)
		}
		if err != nil {
			t.Error(err)
		}
		host <- conn
	}()
	n, err := Join(testbus.Soon(t), "node", JoinOptions{Socket: path})
	if err != nil {
		t.Fatal(err)
	}
	l := n.link
	pushing := func() bool {
		l.reports.mu.Lock()
		defer l.reports.mu.Unlock()
		return l.reports.running
	}
	testbus.Await(t, pushing)
	_ = (<-host).Close()
	awaitEnd(t, l)
	if err := n.Close(testbus.Soon(t)); err != nil {
		t.Error(err)
	}
}
