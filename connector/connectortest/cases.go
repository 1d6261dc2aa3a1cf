package connectortest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/connector"
)

func testSizes(p *pair) {
	const page = 4096
	for i, size := range []int{0, 1, 7, 64, page - 1, page, page + 1, 1 << 20, 1<<20 + 1} {
		key := fmt.Sprintf("size_%d", size)
		want := pattern(i, size)
		p.get(edge, key, p.put(edge, key, want), want)
	}
}

func testGotOnce(p *pair) {
	want := pattern(1, 1000)
	meta := p.put(edge, "once", want)
	p.get(edge, "once", meta, want)
	p.wantNone(edge, "once", meta)
	// The key is free again.
	want = pattern(2, 2000)
	p.get(edge, "once", p.put(edge, "once", want), want)
}

func testEdges(p *pair) {
	want := pattern(3, 1000)
	meta := p.put(edge, "edges", want)
	p.wantNone(other, "never put here", nil)
	p.get(edge, "edges", meta, want)
}

func testReplaced(p *pair) {
	p.put(edge, "twice", pattern(4, 5000))
	want := pattern(5, 3000)
	meta := p.put(edge, "twice", want)
	p.get(edge, "twice", meta, want)
	p.wantNone(edge, "twice", p.keyOnly(meta))
}

// testMetadataUnique asks for values that were replaced or got, by their metadata, while other
// values lie under their key.
func testMetadataUnique(p *pair) {
	if !p.metadataUnique {
		return // metadata do not name one value
	}
	replaced := p.put(edge, "told", pattern(20, 1000))
	want := pattern(21, 1000)
	meta := p.put(edge, "told", want)
	p.wantNone(edge, "told", replaced)
	// The value was put and replaced: there is nothing to wait for.
	if _, err := p.receiver.Await(p.t.Context(), edge, "told", replaced); !errors.Is(err, connector.ErrNotFound) {
		p.t.Errorf("await of a value that was replaced: %v, want ErrNotFound", err)
	}
	p.get(edge, "told", meta, want)
	want = pattern(22, 1000)
	next := p.put(edge, "told", want)
	p.wantNone(edge, "told", meta)
	p.get(edge, "told", next, want)
}

// testWire sends metadata as the control planes do.
func testWire(p *pair) {
	want := pattern(6, 1000)
	for name, wire := range map[string]func(connector.Metadata) (connector.Metadata, error){
		"json": func(m connector.Metadata) (out connector.Metadata, err error) {
			b, err := json.Marshal(m)
			if err == nil {
				err = json.Unmarshal(b, &out)
			}
			return out, err
		},
		"msgpack": func(m connector.Metadata) (out connector.Metadata, err error) {
			b, err := codec.MsgpackSerializer{}.Append(nil, m)
			if err == nil {
				err = codec.MsgpackSerializer{}.Decode(b, &out)
			}
			return out, err
		},
	} {
		meta, err := wire(p.put(edge, name, want))
		if err != nil {
			p.t.Fatalf("%s: %v", name, err)
		}
		p.get(edge, name, meta, want)
	}
}

func testForeign(p *pair) {
	for i, meta := range []connector.Metadata{
		{"source_host": "10.0.0.1", "source_port": 5555},
		{},
	} {
		if p.addressed && len(meta) > 0 {
			continue
		}
		key := fmt.Sprintf("foreign_%d", i)
		want := pattern(7, 1000)
		put := p.put(edge, key, want)
		if p.byMetadata {
			p.wantNone(edge, key, meta)
			meta = put
		}
		p.get(edge, key, meta, want)
	}
}

func testWithoutMetadata(p *pair) {
	p.wantNone(edge, "never put", nil)
	want := pattern(8, 10_000)
	meta := p.put(edge, "bare", want)
	if p.byMetadata {
		p.wantNone(edge, "bare", nil)
	}
	p.get(edge, "bare", p.keyOnly(meta), want)
}

func testFillFails(p *pair) {
	_, err := p.sender.Put(p.t.Context(), edge, "fails", 1000, func([]byte) error { return errFill })
	if !errors.Is(err, errFill) {
		p.t.Fatalf("a put whose value cannot be written: %v", err)
	}
	p.wantNone(edge, "fails", nil)
	want := pattern(9, 1000)
	p.get(edge, "fails", p.put(edge, "fails", want), want)
}

// testCleanupKey: Cleanup of a key keeps values of longer and shorter keys, such as those of
// vLLM-Omni's requests.
func testCleanupKey(p *pair) {
	meta := p.put(edge, "q_0_0", pattern(11, 1000))
	kept, metas := pattern(10, 1000), make(map[string]connector.Metadata)
	for _, key := range []string{"q_0_0_0_0", "q_0_0_thinker_0", "q_0", "omni_thinker_to_talker_kv_cache_q_0_0", "q_0_0@thinker_talker"} {
		metas[key] = p.put(edge, key, kept)
	}
	for range 2 { // the second time there is no value, which is no error
		if err := p.sender.Cleanup(p.t.Context(), "q_0_0"); err != nil {
			p.t.Fatal(err)
		}
	}
	p.wantNone(edge, "q_0_0", meta)
	p.wantNone(edge, "q_0_0", nil)
	for key, meta := range metas {
		p.get(edge, key, meta, kept)
	}
}

func testCleanupOwn(p *pair) {
	if p.sender == p.receiver {
		return // both ends are one transport
	}
	want := pattern(13, 1000)
	meta := p.put(edge, "own", want)
	if err := p.receiver.Cleanup(p.t.Context(), "own"); err != nil {
		p.t.Fatal(err)
	}
	p.get(edge, "own", meta, want)
}

func testPeek(p *pair) {
	peeker, ok := p.receiver.(connector.Peeker)
	if !ok {
		return // the transport is no Peeker
	}
	want := pattern(16, 10_000)
	meta := p.put(edge, "peek", want)
	peek := func() connector.Payload {
		got, err := peeker.Peek(p.t.Context(), edge, "peek", meta)
		if err != nil {
			p.t.Fatal(err)
		}
		return got
	}
	first, second := peek(), peek()
	p.wantPayload(first, want)
	p.get(edge, "peek", meta, want)
	p.wantPayload(second, want) // a peeked payload stays readable after the value was got
	if _, err := peeker.Peek(p.t.Context(), edge, "peek", meta); !errors.Is(err, connector.ErrNotFound) {
		p.t.Errorf("peek at a value that was got: %v, want ErrNotFound", err)
	}
}

func testAwait(p *pair) {
	if p.byMetadata {
		return // there is nothing to wait for without metadata
	}
	want := pattern(14, 1000)
	got := make(chan connector.Payload)
	begun := make(chan struct{})
	go func() {
		defer close(got)
		close(begun)
		payload, err := p.receiver.Await(p.t.Context(), edge, "await", nil)
		if err != nil {
			p.t.Errorf("await: %v", err)
			return
		}
		got <- payload
	}()
	<-begun
	p.put(edge, "await", want)
	if payload := <-got; payload != nil {
		p.wantPayload(payload, want)
	}
	// Await returns a value that was put already at once.
	meta := p.put(edge, "await", want)
	payload, err := p.receiver.Await(p.t.Context(), edge, "await", meta)
	if err != nil {
		p.t.Fatal(err)
	}
	p.wantPayload(payload, want)
}

func testAwaitEnds(p *pair) {
	ctx, cancel := context.WithTimeout(p.t.Context(), time.Millisecond)
	defer cancel()
	if _, err := p.receiver.Await(ctx, edge, "never put", nil); !errors.Is(err, context.DeadlineExceeded) {
		p.t.Errorf("await of a value that is never put: %v, want the context's error", err)
	}
}

func testMany(p *pair) {
	const workers, each = 8, 40
	var wait sync.WaitGroup
	for w := range workers {
		wait.Go(func() {
			for i := range each {
				key := fmt.Sprintf("many_%d_%d", w, i)
				want := pattern(w*each+i, 1+i*997)
				meta, err := p.sender.Put(p.t.Context(), edge, key, len(want), fill(want))
				if err != nil {
					p.t.Errorf("put %q: %v", key, err)
					return
				}
				got, err := p.receiver.Get(p.t.Context(), edge, key, meta)
				if err != nil {
					p.t.Errorf("get %q: %v", key, err)
					return
				}
				if !bytes.Equal(got.Bytes(), want) {
					p.t.Errorf("get %q: not what was put", key)
				}
				got.Release()
			}
		})
	}
	wait.Wait()
}

func testClose(p *pair) {
	want := pattern(15, 100_000)
	meta := p.put(edge, "held", want)
	held, err := p.receiver.Get(p.t.Context(), edge, "held", meta)
	if err != nil {
		p.t.Fatal(err)
	}
	left := p.put(edge, "left", want)
	if err := p.sender.Close(); err != nil {
		p.t.Fatal(err)
	}
	if p.sender != p.receiver {
		p.wantNone(edge, "left", left)
	}
	p.wantPayload(held, want)
}

func testClosed(p *pair) {
	for _, end := range []connector.Transport{p.sender, p.receiver} {
		for range 2 {
			if err := end.Close(); err != nil {
				p.t.Fatal(err)
			}
		}
		_, err := end.Put(p.t.Context(), edge, "closed", 1, func([]byte) error { return nil })
		if !errors.Is(err, connector.ErrClosed) {
			p.t.Errorf("put: %v, want ErrClosed", err)
		}
		for name, get := range map[string]func(context.Context, connector.Edge, string, connector.Metadata) (connector.Payload, error){
			"get": end.Get, "await": end.Await,
		} {
			if _, err := get(p.t.Context(), edge, "closed", nil); !errors.Is(err, connector.ErrClosed) {
				p.t.Errorf("%s: %v, want ErrClosed", name, err)
			}
		}
	}
}
