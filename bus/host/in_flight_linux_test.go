package host

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestReportLeaseIsRenewed: the first reader asks for reports, and so does a reader after half of the
// lease. A report holds until its lease ends.
func TestReportLeaseIsRenewed(t *testing.T) {
	const lease = time.Minute
	var r reports
	begin := time.Now()
	for _, c := range []struct {
		at     time.Duration // since the start
		asks   bool
		silent time.Duration
		then   string // the next report
	}{
		{at: 0, asks: true, silent: 1},
		{at: time.Second, silent: time.Second, then: `{"held":[{"seq":7}]}`},
		{at: lease / 2},
		{at: lease/2 + 1, asks: true},
		{at: lease + 1}, // the second lease goes on
		{at: lease + lease/2 + 2, asks: true, silent: 1},
		{at: lease + lease/2 + 3, silent: 1},
	} {
		got, asks := r.read(begin.Add(c.at), lease)
		if asks != c.asks || got.silent != c.silent || (len(got.Held) == 1) != (c.silent == 0) {
			t.Errorf("after %v: %+v, asks: %v, want asks: %v, silent for %v", c.at, got, asks, c.asks, c.silent)
		}
		if c.then != "" {
			if err := r.add(&wire.Reported{Piece: []byte(c.then)}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestAgesOfLateReportGrow: the waits of a stopped process grow older while its reports are overdue.
// While reports come, no wait looks longer than it was.
func TestAgesOfLateReportGrow(t *testing.T) {
	a := openTestHost(t, 4, func(task *bus.Task, d *bus.Delivery) error { return task.Forward(d) })
	r, df := a.openDirect(t)
	defer r.Abort(nil)
	sess := df.producer.sess
	sess.direct.markUsed()
	say := func(waiting time.Duration) {
		t.Helper()
		report, err := json.Marshal(map[string]any{
			"flows": []map[string]any{
				{"source": df.producer.id, "peer": df.consumer.sess.node, "under_way": 1, "waiting_ns": waiting},
				{"source": df.producer.id, "waiting_ns": waiting},
			},
			"rooms": []map[string]any{{"source": df.producer.id, "waiting_ns": waiting, "wanted": "room"}},
			"held":  []map[string]any{{"source": df.producer.id, "peer": df.consumer.sess.node, "age_ns": waiting}},
		})
		if err == nil {
			err = sess.reports.add(&wire.Reported{Piece: report})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	ages := func(late time.Duration) (all []time.Duration) {
		sess.reports.mu.Lock()
		sess.reports.lastAt = sess.reports.lastAt.Add(-late)
		sess.reports.leaseEnds = time.Now().Add(time.Hour) // the node itself is not asked again
		sess.reports.mu.Unlock()
		u := a.server.inFlight(reportLease)
		for _, s := range u.stalls(a.server.backend, 0) {
			all = append(all, s.Waited)
		}
		for _, h := range u.held {
			all = append(all, h.Age)
		}
		return all
	}
	sess.reports.leaseEnds = time.Now().Add(time.Hour)
	say(time.Minute)
	for _, age := range ages(reportOverdue / 2) {
		if age != time.Minute {
			t.Errorf("a report that is not late has an age of %v, want what it says", age)
		}
	}
	say(time.Minute)
	got := ages(time.Hour / 2)
	if len(got) != 4 {
		t.Fatalf("%d ages, want those of two emissions that wait for windows, one for space, and a delivery", len(got))
	}
	for _, age := range got {
		if age < time.Minute+time.Hour/2 {
			t.Errorf("a report that is half an hour late has an age of %v", age)
		}
	}
	say(0)
	if got := ages(time.Hour / 2); len(got) != 3 || got[0] != 0 { // the other two wait for space, or are held
		t.Errorf("ages are %v, and no emission waits for a window", got)
	}
}

// TestReportsAreBounded: the host keeps one report of a client. A report that is too large or invalid,
// or that the host has not asked for, ends the session.
func TestReportsAreBounded(t *testing.T) {
	say := func(r *reports, flags uint8, piece string) error {
		return r.add(&wire.Reported{Flags: flags, Piece: []byte(piece)})
	}
	var r reports
	if err := say(&r, 0, "{}"); !errors.Is(err, wire.ErrProtocol) || !strings.Contains(err.Error(), "none was asked for") {
		t.Errorf("a report that was not asked for: %v", err)
	}
	r.read(time.Now(), time.Hour)
	if err := say(&r, 0, "garbage"); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("a report that is none: %v", err)
	}
	wanted := strings.Repeat("w", 2*maxWanted)
	for i := range 1000 {
		report, err := json.Marshal(map[string]any{"rooms": []map[string]any{{"source": i, "wanted": wanted}}})
		if err == nil {
			err = errors.Join(say(&r, wire.ReplyMore, string(report[:10])), say(&r, 0, string(report[10:])))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, _ := r.read(time.Now(), time.Hour); len(got.SpaceWaits) != 1 || got.SpaceWaits[0].Source != 999 || got.SpaceWaits[0].Wanted != wanted[:maxWanted] || r.pieces != nil {
		t.Errorf("of 1,000 reports there are %+v, and %d bytes", got, len(r.pieces))
	}
	if err := say(&r, 0, `{"held":[{}`+strings.Repeat(",{}", maxReportEntries-1)+`]}`); err != nil {
		t.Errorf("a report with as many entries as may be: %v", err)
	}
	if err := say(&r, 0, `{"flows":[{}],"rooms":[{}],"held":[{}`+strings.Repeat(",{}", maxReportEntries-2)+`]}`); !errors.Is(err, wire.ErrProtocol) {
		t.Errorf("a report of too many entries: %v", err)
	}
	var err error
	said := 0
	for ; err == nil && said <= 2*maxReportBytes; said += wire.MaxPiece {
		err = say(&r, wire.ReplyMore, strings.Repeat(" ", wire.MaxPiece))
	}
	if !errors.Is(err, wire.ErrProtocol) || said > maxReportBytes+wire.MaxPiece {
		t.Errorf("%d bytes of a report: %v", said, err)
	}
}

// silentClient is a client that can use direct paths, has a request, and does not answer.
type silentClient struct {
	t    *testing.T
	conn *peer.Conn
	in   *peer.Receiver
}

func newSilentClient(t *testing.T, a *testHost) *silentClient {
	t.Helper()
	conn, err := peer.Dial(t.Context(), a.server.Addr(), peer.DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &silentClient{t: t, conn: conn, in: peer.NewReceiver(conn)}
	t.Cleanup(func() {
		_ = conn.Close()
		c.in.Close()
	})
	c.send(&wire.Hello{VersionMin: wire.VersionMin, VersionMax: wire.Version, PID: uint32(os.Getpid()), Name: "mute"})
	c.send(&wire.Lanes{}, &wire.Submit{Source: wire.OwnSource | 1})
	testbus.Await(t, func() bool {
		for _, s := range a.server.live() {
			if s.name == "mute" && len(s.sources.list()) == 1 {
				return true
			}
		}
		return false
	})
	return c
}

// send sends a packet.
func (c *silentClient) send(ms ...wire.Message) {
	c.t.Helper()
	var p []byte
	var err error
	for _, m := range ms {
		if p, err = wire.Append(p, m, 0); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.conn.Send(p, nil); err != nil {
		c.t.Fatal(err)
	}
}

// nextLease returns the lease of the next question for reports.
func (c *silentClient) nextLease() time.Duration {
	c.t.Helper()
	for {
		h, body, fds, err := c.in.Next()
		process.CloseAll(fds)
		if err != nil {
			c.t.Fatal(err)
		}
		if h.Kind == wire.KindReport {
			var m wire.Report
			if err := wire.Decode(body, &m); err != nil {
				c.t.Fatal(err)
			}
			return time.Duration(m.Millis) * time.Millisecond
		}
	}
}

// TestStatusDoesNotWaitForReports: a status, the stalls and the leases name a process that has not
// reported, and do not wait for it.
func TestStatusDoesNotWaitForReports(t *testing.T) {
	a := openTestHost(t, 4, func(task *bus.Task, d *bus.Delivery) error { return task.Forward(d) })
	c := newSilentClient(t, a)
	unreported := func() (all []string) {
		for _, p := range a.server.Status().Processes {
			if p.Unreported {
				all = append(all, p.Name)
			}
		}
		for _, h := range a.server.leases() {
			if h.Together == "unreported" {
				all = append(all, h.Name)
			}
		}
		answer, err := a.node.Call(t.Context(), "stalls", nil)
		var stalls []bus.Stall
		if err == nil {
			err = json.Unmarshal(answer, &stalls)
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range stalls {
			if s.Process == "the host" && strings.HasSuffix(s.Holder, " (mute) to say what it has under way") && s.Waited > 0 {
				all = append(all, "mute")
			}
		}
		return all
	}
	if got := unreported(); strings.Join(got, ", ") != "mute, mute, mute" {
		t.Errorf("a status, leases and stalls name %v, want the process that has not reported", got)
	}
	if lease := c.nextLease(); lease != reportLease {
		t.Errorf("the process is to report for %v, want %v", lease, reportLease)
	}
	c.send(&wire.Reported{Piece: []byte("{}")})
	testbus.Await(t, func() bool { return len(unreported()) == 0 })
	a.server.checkStalls(time.Hour) // the next check comes after a quarter of that
	if lease := c.nextLease(); lease != time.Hour {
		t.Errorf("the watcher has the process report for %v, want an hour", lease)
	}
}
