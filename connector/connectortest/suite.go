package connectortest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
)

// Ends opens the two ends of a transport.
type Ends struct {
	// Open opens new ends, without values of earlier ones. It may register a Close with t.Cleanup:
	// the suite closes the ends as well.
	Open func(t *testing.T) (put, get connector.Transport)
	// Next opens one more end beside those of the last Open, as a process does that is started
	// again. If it is set, the suite kills ends that are a [Child].
	Next func(t *testing.T) connector.Transport
	// ByMetadata: a Get finds no value without the metadata of its Put.
	ByMetadata bool
	// MetadataUnique: metadata distinguish the value of their Put from earlier and later values
	// under the same key.
	MetadataUnique bool
	// Addressed: metadata name the sender by its address, so a foreign address is not ignored.
	Addressed bool
}

var (
	edge  = connector.Edge{From: "thinker", To: "talker"}
	other = connector.Edge{From: "thinker", To: "vocoder"}

	errFill = errors.New("the value cannot be written")
)

// Run runs the suite.
func Run(t *testing.T, ends Ends) {
	t.Helper()
	s := &suite{ends: ends}
	for _, c := range []struct {
		name string
		run  func(*pair)
	}{
		{"sizes", testSizes},
		{"got once", testGotOnce},
		{"edges apart", testEdges},
		{"replaced", testReplaced},
		{"told apart", testMetadataUnique},
		{"metadata over the wire", testWire},
		{"foreign metadata", testForeign},
		{"without metadata", testWithoutMetadata},
		{"fill fails", testFillFails},
		{"cleanup of a key", testCleanupKey},
		{"cleanup is for one's own", testCleanupOwn},
		{"peek", testPeek},
		{"await", testAwait},
		{"await until the deadline", testAwaitEnds},
		{"many at once", testMany},
		{"close", testClose},
		{"closed", testClosed},
		{"sender dies", testSenderDies},
		{"receiver dies", testReceiverDies},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(s.open(t)) })
	}
}

type suite struct{ ends Ends }

func (s *suite) open(t *testing.T) *pair {
	t.Helper()
	put, get := s.ends.Open(t)
	p := &pair{t: t, sender: put, receiver: get, next: s.ends.Next, byMetadata: s.ends.ByMetadata, metadataUnique: s.ends.MetadataUnique, addressed: s.ends.Addressed}
	for _, end := range []connector.Transport{put, get} {
		t.Cleanup(func() {
			if end != p.killed {
				closeEnd(t, end)
			}
		})
	}
	return p
}

func closeEnd(t *testing.T, end connector.Transport) {
	t.Helper()
	if err := end.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
}

// A pair is two open ends, with helpers of the tests.
type pair struct {
	t                *testing.T
	sender, receiver connector.Transport
	next             func(*testing.T) connector.Transport // nil: the suite kills no end
	killed           connector.Transport

	byMetadata, metadataUnique, addressed bool
}

// pattern is a payload that depends on the seed.
func pattern(seed, size int) []byte {
	b := make([]byte, size)
	x := uint32(seed)*2654435761 + 1 //nolint:gosec // any number will do
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func fill(payload []byte) func([]byte) error {
	return func(dst []byte) error {
		if len(dst) != len(payload) {
			return fmt.Errorf("%d bytes of memory for %d", len(dst), len(payload))
		}
		copy(dst, payload)
		return nil
	}
}

func (p *pair) put(edge connector.Edge, key string, payload []byte) connector.Metadata {
	p.t.Helper()
	meta, err := p.sender.Put(context.Background(), edge, key, len(payload), fill(payload))
	if err != nil {
		p.t.Fatalf("put %q: %v", key, err)
	}
	meta["size"] = len(payload)
	return meta
}

// get consumes a payload and compares it. A payload in the metadata is read there.
func (p *pair) get(edge connector.Edge, key string, meta connector.Metadata, want []byte) {
	p.t.Helper()
	if _, inline := meta["inline_bytes"]; inline {
		if b, err := meta.Bytes("inline_bytes"); err != nil || !bytes.Equal(b, want) {
			p.t.Fatalf("%q in its metadata: %d bytes that are not the %d that were put: %v", key, len(b), len(want), err)
		}
		return
	}
	got, err := p.receiver.Get(context.Background(), edge, key, meta)
	if err != nil {
		p.t.Fatalf("get %q: %v", key, err)
	}
	p.wantPayload(got, want)
}

func (p *pair) wantPayload(got connector.Payload, want []byte) {
	p.t.Helper()
	if !bytes.Equal(got.Bytes(), want) {
		p.t.Fatalf("got %d bytes that are not the %d that were put", len(got.Bytes()), len(want))
	}
	got.Release()
}

// wantNone calls Get for a value that does not exist.
func (p *pair) wantNone(edge connector.Edge, key string, meta connector.Metadata) {
	p.t.Helper()
	got, err := p.receiver.Get(context.Background(), edge, key, meta)
	if err == nil {
		p.t.Fatalf("get %q: %d bytes where nothing should be", key, len(got.Bytes()))
	}
	if !errors.Is(err, connector.ErrNotFound) {
		p.t.Fatalf("get %q: %v, want ErrNotFound", key, err)
	}
}

// keyOnly returns the metadata for a Get by key.
func (p *pair) keyOnly(meta connector.Metadata) connector.Metadata {
	if p.byMetadata {
		return meta
	}
	return nil
}
