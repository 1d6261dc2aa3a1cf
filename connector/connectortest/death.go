package connectortest

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/connector"
)

// killable is an end that may be killed, if it is one.
func (p *pair) killable(end connector.Transport) (victim *Child, ok bool) {
	victim, ok = end.(*Child)
	return victim, ok && p.next != nil
}

// kill ends a victim as a crash would, and opens another end in its place.
func (p *pair) kill(victim *Child) connector.Transport {
	victim.Kill()
	p.killed = victim
	next := p.next(p.t)
	p.t.Cleanup(func() { closeEnd(p.t, next) })
	return next
}

// testSenderDies: what a sender had put is got whole, or is not there; its place is
// anybody's again, and once another has put, nothing of it is left.
func testSenderDies(p *pair) {
	victim, ok := p.killable(p.sender)
	if !ok {
		return
	}
	want := pattern(23, 100_000)
	held := p.put(edge, "held", want)
	got, err := p.receiver.Get(p.t.Context(), edge, "held", held)
	if err != nil {
		p.t.Fatal(err)
	}
	left := p.put(edge, "left", want)
	lost := p.put(edge, "lost", want)
	p.sender = p.kill(victim)
	p.wantPayload(got, want)
	if got, err := p.receiver.Get(p.t.Context(), edge, "left", left); err == nil {
		p.wantPayload(got, want)
	} else if !errors.Is(err, connector.ErrNotFound) {
		p.t.Errorf("get of what a process left that was killed: %v, want it, or ErrNotFound", err)
	}
	want = pattern(24, 50_000)
	p.get(edge, "left", p.put(edge, "left", want), want)
	p.wantNone(edge, "lost", lost)
}

// testReceiverDies: one that has got nothing has taken nothing, though it waited for it.
func testReceiverDies(p *pair) {
	victim, ok := p.killable(p.receiver)
	if !ok {
		return
	}
	want := pattern(25, 100_000)
	meta := p.put(edge, "kept", want)
	begun, over := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(over)
		close(begun)
		if got, err := victim.Await(p.t.Context(), edge, "late", nil); err == nil {
			p.t.Errorf("%d bytes came that nobody has put", len(got.Bytes()))
		}
	}()
	<-begun
	p.receiver = p.kill(victim)
	<-over
	p.get(edge, "kept", meta, want)
	want = pattern(26, 50_000)
	p.get(edge, "late", p.put(edge, "late", want), want)
}
