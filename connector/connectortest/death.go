package connectortest

import (
	"errors"

	"github.com/omnibus-runtime/omnibus/connector"
)

// killable returns the end as a Child, if the suite may kill it.
func (p *pair) killable(end connector.Transport) (victim *Child, ok bool) {
	victim, ok = end.(*Child)
	return victim, ok && p.next != nil
}

// kill kills the victim, and opens another end in its place.
func (p *pair) kill(victim *Child) connector.Transport {
	victim.Kill()
	p.killed = victim
	next := p.next(p.t)
	p.t.Cleanup(func() { closeEnd(p.t, next) })
	return next
}

// testSenderDies: a value of a killed sender is got whole, or is not found; another sender can put
// under its key, and after that put no old value is left.
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
		p.t.Errorf("get of a value of a killed sender: %v, want the value, or ErrNotFound", err)
	}
	want = pattern(24, 50_000)
	p.get(edge, "left", p.put(edge, "left", want), want)
	p.wantNone(edge, "lost", lost)
}

// testReceiverDies: a receiver that is killed while it waits consumes no value.
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
			p.t.Errorf("%d bytes came without a put", len(got.Bytes()))
		}
	}()
	<-begun
	p.receiver = p.kill(victim)
	<-over
	p.get(edge, "kept", meta, want)
	want = pattern(26, 50_000)
	p.get(edge, "late", p.put(edge, "late", want), want)
}
