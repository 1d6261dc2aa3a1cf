package node_test

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// thinHost is a host of the stage "m" that the test plays: a node of this process, and the other
// end of its connection.
func thinHost(t *testing.T) (*node.Node, *thinClient) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "bus.sock")
	l, err := peer.Listen(path, peer.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	joined := make(chan *node.Node, 1)
	go func() {
		n, err := node.Join(t.Context(), "node", node.JoinOptions{Socket: path, MaxRequests: 4})
		if err != nil {
			t.Error(err)
		}
		joined <- n
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	c := &thinClient{t: t, conn: conn, in: peer.NewReceiver(conn)}
	c.await(wire.KindHello)
	c.send(&wire.Welcome{
		Version: wire.Version, Node: 1, InlineBytes: 1 << 10, Bus: "thin",
		Inputs: []wire.Edge{{Name: "caller->m", Peer: "m"}}, Results: []wire.Edge{{Name: "m->caller", Peer: "m"}},
	})
	n := <-joined
	if n == nil {
		t.FailNow()
	}
	t.Cleanup(func() {
		c.in.Close()
		_ = conn.Close()
		_ = n.Close(testbus.Soon(t)) // its host is gone
	})
	return n, c
}

// TestTimeLeftAfterPermitWait: Submit tells the host the time left when the message is sent, and
// not when the caller began to wait for a permit.
func TestTimeLeftAfterPermitWait(t *testing.T) {
	n, host := thinHost(t)
	first := make([]*bus.Request, 4) // all permits of the node
	for i := range first {
		var err error
		if first[i], err = n.Submit(t.Context(), "x"); err != nil {
			t.Fatal(err)
		}
		if m := host.await(wire.KindSubmit).(*wire.Submit); m.TimeLeft != 0 {
			t.Errorf("%d ns are left of a request without a deadline", m.TimeLeft)
		}
		host.send(&wire.Returned{Puts: []uint32{host.await(wire.KindPut).(*wire.Put).Put}})
	}
	deadline := time.Now().Add(time.Hour)
	for _, at := range []time.Time{deadline, deadline.Round(0)} { // the second has no monotonic clock reading
		go func() {
			if r, err := n.Submit(t.Context(), "x", bus.WithDeadline(at)); err == nil {
				r.Close()
			}
		}()
	}
	testbus.Await(t, func() bool { return node.SubmitWaiters(n) == 2 })
	waiting := time.Now()
	for _, r := range first[:2] {
		r.Close()
	}
	for range 2 {
		left := time.Duration(host.await(wire.KindSubmit).(*wire.Submit).TimeLeft)
		if most := deadline.Sub(waiting); left <= 0 || left > most {
			t.Errorf("%v are left in the message, and %v were left when the request waited for its permit", left, most)
		}
	}
}

// TestTimeLeftAfterSlotWait: Open tells a process the time left when the task is opened.
func TestTimeLeftAfterSlotWait(t *testing.T) {
	spec := bus.Stage("m", testbus.Upper)
	spec.MaxInflight = 1
	h := listen(t, testbus.Remotes(testbus.Linear(spec)), bus.Options{})
	c := dialThin(t, h.path)
	c.send(&wire.Serve{Token: 1, Stage: "m"})
	c.await(wire.KindServing)
	first, err := h.bus.Submit(t.Context(), "x")
	if err != nil {
		t.Fatal(err)
	}
	if m := c.await(wire.KindOpen).(*wire.Open); m.TimeLeft != 0 {
		t.Errorf("%d ns are left of a request without a deadline", m.TimeLeft)
	}
	d := c.await(wire.KindDeliver).(*wire.Deliver)
	deadline := time.Now().Add(time.Hour)
	go func() {
		if r, err := h.bus.Submit(t.Context(), "x", bus.WithDeadline(deadline)); err == nil {
			t.Cleanup(r.Close)
		}
	}()
	testbus.Await(t, func() bool { return h.bus.Stats().Live == 2 })
	waiting := time.Now()
	first.Close()
	c.send(&wire.Finish{Delivery: d.Delivery})
	left := time.Duration(c.await(wire.KindOpen).(*wire.Open).TimeLeft)
	if most := deadline.Sub(waiting); left <= 0 || left > most {
		t.Errorf("%v are left in the message, and %v were left when the request waited for its slot", left, most)
	}
	c.send(&wire.Bye{})
}

// TestTimeLeftOfASubmit: a request ends after the time left in its Submit, for any value, and
// independently of the client's clock.
func TestTimeLeftOfASubmit(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), bus.Options{})
	c := dialThin(t, h.path)
	c.await(wire.KindWelcome)
	var source uint32
	submit := func(left int64, flags uint8) {
		source++
		c.send(&wire.Submit{Source: ownSource(source), TimeLeft: left, Flags: flags})
	}
	over := func(want wire.Outcome) {
		t.Helper()
		if m := c.await(wire.KindOver).(*wire.Over); m.Source != ownSource(source) || m.Outcome != want {
			t.Errorf("%v, %q; want %v", m.Outcome, m.Text, want)
		}
	}
	for _, left := range []int64{math.MinInt64, math.MinInt64 + 1, -int64(time.Hour), -1, 1, int64(50 * time.Millisecond)} {
		submit(left, 0)
		over(wire.OutcomeDeadline)
	}
	for _, left := range []int64{math.MaxInt64, math.MaxInt64 - 1, int64(time.Hour)} {
		submit(left, wire.SubmitTell)
		c.await(wire.KindSubmitted)
		c.send(&wire.AbortRequest{Source: ownSource(source)})
		over(wire.OutcomeAborted)
		submit(left, wire.SubmitTell)
		c.await(wire.KindSubmitted)
		c.send(&wire.AbortRequest{Source: ownSource(source), Code: wire.CodeOver}) // by the clock of the client
		over(wire.OutcomeDeadline)
	}
	if s := h.bus.Stats(); s.Deadline != 9 || s.Aborted != 3 || s.Failed > 0 {
		t.Errorf("%d requests are past their deadline, %d aborted and %d failed; want 9, 3 and 0", s.Deadline, s.Aborted, s.Failed)
	}
	c.send(&wire.Bye{})
}

// TestHostDecidesOnDeadlines: a process that reports a passed deadline does not end the request,
// but the request cannot complete without the unhandled delivery either. Without a deadline, the
// report is a failure of the process. A process that has not ended the task is told that it is over.
func TestHostDecidesOnDeadlines(t *testing.T) {
	h := listen(t, testbus.Remotes(testbus.Linear(bus.Stage("m", testbus.Upper))), bus.Options{})
	c := dialThin(t, h.path)
	c.send(&wire.Serve{Token: 1, Stage: "m", Flags: wire.ServeEnds})
	c.await(wire.KindServing)
	for _, tc := range []struct {
		name    string
		limit   time.Duration
		answers func(task, delivery uint32) []wire.Message
		want    bus.Outcome
	}{
		{"ended", 300 * time.Millisecond, func(task, delivery uint32) []wire.Message {
			return []wire.Message{&wire.Ended{Task: task, Code: wire.CodeOver, Text: "late"}, &wire.Finish{Delivery: delivery, Flags: wire.FinishHandled}}
		}, bus.PastDeadline},
		{"finish", 300 * time.Millisecond, func(_, delivery uint32) []wire.Message {
			return []wire.Message{&wire.Finish{Delivery: delivery, Flags: wire.FinishHandled, Code: wire.CodeOver, Text: "late"}}
		}, bus.PastDeadline},
		{"ended without a deadline", 0, func(task, delivery uint32) []wire.Message {
			return []wire.Message{&wire.Ended{Task: task, Code: wire.CodeOver, Text: "late"}, &wire.Finish{Delivery: delivery}}
		}, bus.Failed},
		{"finish without a deadline", 0, func(_, delivery uint32) []wire.Message {
			return []wire.Message{&wire.Finish{Delivery: delivery, Code: wire.CodeOver, Text: "late"}}
		}, bus.Failed},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var opts []bus.SubmitOption
			if tc.limit > 0 {
				opts = append(opts, bus.WithDeadline(time.Now().Add(tc.limit)))
			}
			r, err := h.bus.Submit(t.Context(), "x", opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			task := c.await(wire.KindOpen).(*wire.Open).Task
			delivery := c.await(wire.KindDeliver).(*wire.Deliver).Delivery
			for _, m := range tc.answers(task, delivery) {
				c.send(m)
			}
			err = r.Wait(testbus.Soon(t))
			if r.Outcome() != tc.want || errors.Is(err, bus.ErrDeadline) != (tc.want == bus.PastDeadline) {
				t.Errorf("it is %v: %v; want %v", r.Outcome(), err, tc.want)
			}
			if strings.HasPrefix(tc.name, "finish") { // it has not said that the task has ended
				if over := c.await(wire.KindOver).(*wire.Over); over.Source != task {
					t.Errorf("task %d is over, want %d", over.Source, task)
				}
			}
		})
	}
	c.send(&wire.Bye{})
}

// TestDeadlineOfATask: the handler's context has the deadline of the message, by the clock of this
// process, and ends then. The node's report of the deadline leaves the outcome of the request to
// the host.
func TestDeadlineOfATask(t *testing.T) {
	n, host := thinHost(t)
	seen := make(chan time.Time, 16) // more than the number of handler calls
	go func() {
		_ = n.Serve(context.Background(), bus.StageSpec{Name: "m", Handle: func(t *bus.Task, d *bus.Delivery) error { // ends with the node
			at, _ := t.Context().Deadline()
			if seen <- at; string(d.Bytes()) == "waits" {
				<-t.Context().Done()
			}
			return t.Context().Err()
		}})
	}()
	serve := host.await(wire.KindServe).(*wire.Serve)
	host.send(&wire.Serving{
		Token: serve.Token, MaxInflight: 4,
		Inputs: []wire.Edge{{Name: "caller->m"}}, Outputs: []wire.Edge{{Name: "m->caller"}},
	})
	var task uint32
	open := func(left int64, payload string) (from time.Time) {
		task++
		from = time.Now()
		host.send(&wire.Open{Task: task, Request: uint64(task), TimeLeft: left})
		host.send(&wire.Deliver{Source: task, Delivery: task, Flags: wire.FlagInline | wire.FlagLast, Codec: 1, Size: uint64(len(payload)), Payload: []byte(payload)})
		return from
	}
	from := open(int64(time.Hour), "returns")
	at := <-seen
	if at.Before(from.Add(time.Hour)) || at.After(time.Now().Add(time.Hour)) {
		t.Errorf("the deadline is in %v, want an hour from the message on", at.Sub(from))
	}
	if !strings.Contains(at.String(), " m=") {
		t.Errorf("the deadline is %v, want it by the monotonic clock", at)
	}
	if m := host.await(wire.KindFinish).(*wire.Finish); m.Code != wire.OK {
		t.Errorf("the delivery was finished with %v: %s", m.Code, m.Text)
	}
	for _, left := range []int64{math.MaxInt64, 0} {
		open(left, "returns")
		if at := <-seen; left == 0 && !at.IsZero() {
			t.Errorf("a task without a deadline has one in %v", time.Until(at))
		}
		if m := host.await(wire.KindFinish).(*wire.Finish); m.Code != wire.OK {
			t.Errorf("the delivery was finished with %v: %s", m.Code, m.Text)
		}
	}
	// ended waits until the last task has ended and its delivery is finished, in either order.
	ended := func(begun func() bool) {
		t.Helper()
		finished := false
		for over := false; !over || !finished; {
			h, body, fds, err := host.in.Next()
			process.CloseAll(fds)
			if err != nil {
				t.Fatal(err)
			}
			m, err := wire.Parse(h, body)
			if err != nil {
				t.Fatal(err)
			}
			switch m := m.(type) {
			case *wire.Ended:
				if over = over || m.Task == task; m.Task == task && m.Code != wire.CodeOver {
					t.Errorf("the task has ended with %v: %s, which decides on the request", m.Code, m.Text)
				}
			case *wire.Finish:
				if finished = finished || m.Delivery == task; m.Delivery == task && begun() && m.Code != wire.CodeOver {
					t.Errorf("the delivery was finished with %v: %s, which decides on the request", m.Code, m.Text)
				}
			}
		}
	}
	var begun bool
	has := func() bool {
		select {
		case <-seen:
			begun = true
		default:
		}
		return begun
	}
	for limit := 50 * time.Millisecond; !begun; limit *= 2 { // if it was too short to begin
		open(int64(limit), "waits")
		ended(has)
	}
	for _, left := range []int64{-1, math.MinInt64} {
		begun = false
		open(left, "waits") // and need not begin
		ended(has)
	}
}
