package node_test

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestStoppedProducerIsReported: the last report of a stopped process stays valid. The deliveries
// that others hold of it, and its waiting emissions, grow older, and disappear when the stream has
// ended.
func TestStoppedProducerIsReported(t *testing.T) {
	const window, outputs = 4, 50
	b, kept := keeping("b")
	p := testbus.Linear(forwarding("a"), b)
	p.Edges[0].Window = window
	h := listen(t, testbus.Remotes(p), bus.Options{StallTimeout: time.Hour})
	consumer, _ := h.serve(t, b)
	a := h.childAs(t, "emit", "a")
	r := testbus.StreamOf(t, h.bus)
	if err := r.Input(t.Context()).EmitBytes(block(outputs, 8)); err != nil {
		t.Fatal(err)
	}
	seen := 0
	var has []*bus.Kept
	take := func() { has = append(has, <-kept); seen++ }
	held := func() []host.Holding {
		return slices.DeleteFunc(h.server.Holdings(), func(o host.Holding) bool { return !o.Direct || o.Edge != "a->b" })
	}
	waited := func() (longest time.Duration) {
		for _, s := range stallsOf(t, consumer) {
			if s.Edge == "a->b" && s.Deliveries == window {
				longest = max(longest, s.Waited)
			}
		}
		return longest
	}
	for len(has) < window {
		take()
		if h.relayed(has[0], "a->b") { // until the window is full of direct deliveries
			mustFinish(t, has[0])
			has = has[1:]
		}
	}
	testbus.Await(t, func() bool { return len(held()) == window && waited() > 0 })
	stopProcess(t, a.Process)
	age, wait := held()[0].Age, waited()
	const more = 2 * time.Second
	testbus.Await(t, func() bool {
		now := held()
		return len(now) == window && now[0].PID == os.Getpid() && now[0].Age > age+more && waited() > wait+more
	})
	for _, p := range h.server.Status().Processes {
		if p.PID == a.Process.Pid && (p.Unreported || !p.Stopped) {
			t.Errorf("the process is %+v, want that it is stopped and has reported", p)
		}
	}
	mustContinue(t, a.Process)
	for _, k := range has {
		mustFinish(t, k)
	}
	for seen < outputs {
		mustFinish(t, <-kept)
		seen++
	}
	if err := r.CloseSend(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	testbus.Await(t, func() bool { return len(held()) == 0 && waited() == 0 })
}
