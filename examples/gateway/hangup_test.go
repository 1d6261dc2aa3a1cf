package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestHangUp: after many clients hang up at a time, at every stage of a request,
// no resources of their requests are left. The checks of serve at the end of a
// test run here after each wave as well.
func TestHangUp(t *testing.T) {
	const waves, clients = 3, 8 // clients of each kind
	kinds := []leaver{
		{name: "after the head", send: 0},
		{name: "in the header", send: 20},
		{name: "in the first block", send: headerBytes + blockBytes/2},
		{name: "before the answer is read", send: headerBytes + 2*blockBytes},
		{name: "in the answer", send: headerBytes + 2*blockBytes, read: headerBytes + blockBytes/2, mustAbort: true},
		{name: "in the answer, at once", send: headerBytes + blockBytes, read: 1, reset: true, mustAbort: true},
		{name: "with all sent", send: -1, end: true},
		{name: "with all sent, in the answer", send: -1, end: true, read: 1},
	}
	s := serve(t, func(o *options) {
		o.requests = len(kinds) * clients
		o.tweak = func(_ *bus.Pipeline, opts *bus.Options) { opts.Store.ArenaBytes = 64 << 20 }
	})
	whole := openWAV(t, mono, sweep(6*blockBytes))
	var aborted int64
	for range waves {
		var wg sync.WaitGroup
		for _, k := range kinds {
			for range clients {
				wg.Go(func() { k.visit(t, s.http.Listener.Addr().String(), whole) })
			}
			if k.mustAbort {
				aborted += clients
			}
		}
		wg.Wait()
		// A client that stays gets an answer while the requests of the others are cleaned up.
		if out := s.mustPost(t, "?quality=0", bytes.NewReader(whole)); !bytes.Equal(out, whole) {
			t.Errorf("a client that stayed got %d bytes, not those it sent", len(out))
		}
	}
	s.http.Close()
	s.checkIdle(t)
	stats := s.bus.Stats()
	if stats.Aborted < aborted || stats.Failed != 0 || stats.Deadline != 0 {
		t.Errorf("%d requests aborted, want %d or more; %d failed and %d past their deadline, want none",
			stats.Aborted, aborted, stats.Failed, stats.Deadline)
	}
}

// leaver is a client that hangs up.
type leaver struct {
	name      string
	send      int  // bytes of the WAV; -1: all
	end       bool // send the end of the body too
	read      int  // bytes of the answer's body
	reset     bool // close with a reset
	mustAbort bool // the request has begun and cannot be complete
}

func (l leaver) visit(t *testing.T, addr string, whole []byte) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	if l.reset {
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil {
			t.Error(err)
		}
	}
	if l.send >= 0 {
		whole = whole[:l.send]
	}
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		// It fails when the connection is closed below, as intended.
		_, _ = io.WriteString(conn, "POST /v1/transcode?quality=0 HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n")
		if len(whole) > 0 {
			_, _ = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(whole), whole)
		}
		if l.end {
			_, _ = io.WriteString(conn, "0\r\n\r\n")
		}
	}()
	if l.read == 0 {
		<-sent
		return
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Errorf("%s: %v", l.name, err)
		return
	}
	if _, err := io.ReadFull(res.Body, make([]byte, l.read)); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("%s: %s, %v", l.name, res.Status, err)
	}
	conn.Close()
	<-sent
}

// TestHangUpWithNothingToSend: when a client hangs up after it has sent everything, the
// request is aborted while the stages work on it.
func TestHangUpWithNothingToSend(t *testing.T) {
	busy := make(chan struct{})
	s := serve(t, func(o *options) {
		o.tweak = func(p *bus.Pipeline, _ *bus.Options) {
			p.Stages[2].Handle = func(task *bus.Task, _ *bus.Delivery) error {
				close(busy)
				<-task.Context().Done()
				return nil
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	whole := openWAV(t, mono, sweep(100))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+"/v1/transcode", bytes.NewReader(whole))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "audio/wav")
	go func() {
		<-busy
		cancel()
	}()
	if res, err := s.http.Client().Do(req); err == nil {
		res.Body.Close()
		t.Errorf("an answer came: %s", res.Status)
	}
	s.http.Close()
	s.checkIdle(t)
	if got := s.bus.Stats().Aborted; got != 1 {
		t.Errorf("%d requests aborted, want 1", got)
	}
}

// TestClientReadsNothing: a client that keeps sending and reads nothing is cut off.
// By then all buffers are full, from its own socket to the first stage. On a busy
// machine the client may be cut off before it has sent: then it gets more time.
func TestClientReadsNothing(t *testing.T) {
	const least, most = 200 * time.Millisecond, 3 * time.Second
	for idle := least; ; idle *= 2 {
		stats := sendOnly(t, idle)
		if stats.Aborted == 1 && stats.Edges[0].Deliveries > 0 {
			return
		}
		if idle > most {
			t.Fatalf("%d requests aborted, want 1; %d blocks went in", stats.Aborted, stats.Edges[0].Deliveries)
		}
	}
}

// sendOnly has a client send and read nothing, until it is cut off.
func sendOnly(t *testing.T, idle time.Duration) bus.Stats {
	t.Helper()
	s := serve(t, func(o *options) {
		o.idle = idle
		o.maxBytes = 1 << 40
	})
	conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "POST /v1/transcode?quality=0 HTTP/1.1\r\nHost: gateway\r\nTransfer-Encoding: chunked\r\n\r\n")
	part := openWAV(t, mono, sweep(blockBytes))
	for err == nil { // more samples each time; the repeated header counts as samples
		_, err = fmt.Fprintf(conn, "%x\r\n%s\r\n", len(part), part)
	}
	s.http.Close()
	s.checkIdle(t)
	return s.bus.Stats()
}

// TestBodyThatNeverComes: a client that gets its answer after the head, and never
// sends the announced body, is cut off.
func TestBodyThatNeverComes(t *testing.T) {
	s := serve(t, func(o *options) { o.idle = time.Second })
	const length, chunked = "Content-Length: 100\r\n", "Transfer-Encoding: chunked\r\n"
	for _, tc := range []struct{ name, head, status string }{
		{"not a WAV", "POST /v1/transcode HTTP/1.1\r\nContent-Type: text/plain\r\n" + length, "415"},
		{"wrong query", "POST /v1/transcode?x=1 HTTP/1.1\r\n" + chunked, "400"},
		{"wrong method", "PUT /v1/transcode HTTP/1.1\r\n" + length, "405"},
		{"no such path", "POST /nowhere HTTP/1.1\r\n" + chunked, "404"},
		{"health", "GET /healthz HTTP/1.1\r\n" + length, "200"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			conn, err := net.Dial("tcp", s.http.Listener.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if err := conn.SetDeadline(time.Now().Add(hangs)); err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(conn, tc.head+"Host: gateway\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			said, err := io.ReadAll(conn)
			if err != nil || !bytes.HasPrefix(said, []byte("HTTP/1.1 "+tc.status)) {
				t.Errorf("%.60q, then %v; want %s and the end of the connection", said, err, tc.status)
			}
		})
	}
}
