package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

const sampleFile = "../speech/testdata/speech.wav"

// TestSameAsSpeech: the answer is, to the bit, what examples/speech writes to
// its standard output for the same input and quality.
func TestSameAsSpeech(t *testing.T) {
	speech := filepath.Join(t.TempDir(), "speech.exe")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", speech, "../speech").CombinedOutput(); err != nil {
		t.Fatalf("build examples/speech: %v: %s", err, out)
	}
	s := serve(t, nil)
	stereo, finest := wav.Format{Rate: 44100, Channels: 2}, wav.Format{Rate: 192_000, Channels: 2}
	n := blockBytes / 2
	for name, in := range map[string][]byte{
		"sample":               readFile(t, sampleFile),
		"no samples":           wholeWAV(t, stereo, nil),
		"one sample":           wholeWAV(t, mono, sweep(1)),
		"less than a block":    wholeWAV(t, mono, sweep(n-1)),
		"a block":              wholeWAV(t, mono, sweep(n)),
		"a block and a sample": wholeWAV(t, mono, sweep(n+1)),
		"blocks, open sizes":   openWAV(t, mono, sweep(7*n)),
		"stereo":               wholeWAV(t, stereo, sweep(2*88_201)),
		"silence":              wholeWAV(t, stereo, make([]int16, 60_000)),
		"largest chunks":       wholeWAV(t, finest, sweep(2*250_001)),
		"with a chunk behind":  append(wholeWAV(t, mono, sweep(9000)), "LIST\x02\x00\x00\x00ab"...),
	} {
		for _, quality := range []string{"", "0", "0.07", "3"} {
			t.Run(name+"/"+quality, func(t *testing.T) {
				args, query := []string{"-", "-"}, ""
				if quality != "" {
					args, query = []string{"-q", quality, "-", "-"}, "?quality="+quality
				}
				cmd := exec.CommandContext(t.Context(), speech, args...)
				cmd.Stdin = bytes.NewReader(in)
				want, err := cmd.Output()
				if err != nil {
					t.Fatal(err)
				}
				if got := s.mustPost(t, query, bytes.NewReader(in)); !bytes.Equal(got, want) {
					t.Errorf("%d bytes, not the %d that examples/speech gives", len(got), len(want))
				}
			})
		}
	}
}

// TestStreams: each chunk of output arrives before the next one is sent, even if it
// is small.
func TestStreams(t *testing.T) {
	const chunks = 8
	s := serve(t, nil)
	for _, f := range []wav.Format{mono, {Rate: 1000, Channels: 1}, {Rate: 48_000, Channels: 2}} {
		t.Run(fmt.Sprintf("%+v", f), func(t *testing.T) {
			hop := 2 * f.Channels * mdct.HopFor(f.Rate)
			block := codec.ChunkFrames * hop
			whole := openWAV(t, f, sweep(chunks*block/2+78))
			r, w := io.Pipe()
			defer w.Close()
			// A failed send shows as missing bytes of the answer.
			go func() { _, _ = w.Write(whole[:headerBytes+block]) }()
			x := &exchange{t: t, res: s.post(t, "?quality=0", r)}
			out := x.read(headerBytes + block - hop)
			for k := 1; k < chunks; k++ {
				at := headerBytes + k*block
				go func() { _, _ = w.Write(whole[at : at+block]) }()
				out = append(out, x.read(block)...)
			}
			go func() {
				_, _ = w.Write(whole[headerBytes+chunks*block:])
				w.Close()
			}()
			rest, err := io.ReadAll(x.res.Body)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(append(out, rest...), whole) {
				t.Error("the output differs from the input")
			}
		})
	}
}

// TestConnectionServesAgain: after an answer was read to its end, the connection
// carries another request, for each kind of request before.
func TestConnectionServesAgain(t *testing.T) {
	s := serve(t, nil)
	in := readFile(t, sampleFile)
	reused := false
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
		GotConn: func(c httptrace.GotConnInfo) { reused = c.Reused },
	})
	for i := range 10 {
		for _, method := range []string{http.MethodPost, http.MethodGet} {
			url, body := s.http.URL+"/healthz", io.Reader(http.NoBody)
			if method == http.MethodPost {
				url, body = s.http.URL+"/v1/transcode?quality=0", struct{ io.Reader }{bytes.NewReader(in)}
			}
			req, err := http.NewRequestWithContext(ctx, method, url, body)
			if err != nil {
				t.Fatal(err)
			}
			res, err := s.http.Client().Do(req)
			if err != nil {
				t.Fatal(err)
			}
			out, err := io.ReadAll(res.Body)
			res.Body.Close()
			if err != nil || res.StatusCode != http.StatusOK {
				t.Fatalf("%s: %s, %v: %.200s", method, res.Status, err, out)
			}
			if method == http.MethodPost && !bytes.Equal(out[headerBytes:], in[headerBytes:]) {
				t.Fatalf("%d bytes, which differ from the input", len(out))
			}
			if i > 0 && !reused {
				t.Fatalf("%s %d: the connection was not used again", method, i)
			}
		}
	}
}

// TestMediaTypes: a WAV is accepted with every media type that clients send.
func TestMediaTypes(t *testing.T) {
	s := serve(t, nil)
	sample := readFile(t, sampleFile)
	for _, media := range []string{
		"", "audio/x-wav", "audio/vnd.wave; codec=1", "application/octet-stream",
		"application/x-www-form-urlencoded", // of curl --data-binary, and of Python's urllib
	} {
		t.Run(media, func(t *testing.T) {
			if res := s.post(t, "", bytes.NewReader(sample), "Content-Type", media); res.StatusCode != http.StatusOK {
				t.Errorf("%q: %s", media, res.Status)
			}
		})
	}
}

func TestBadRequests(t *testing.T) {
	s := serve(t, func(o *options) { o.maxBytes = 1 << 20 })
	sample := readFile(t, sampleFile)
	eightBit := slices.Clone(sample)
	eightBit[32], eightBit[34] = 1, 8
	chunked := func(b []byte) io.Reader { return struct{ io.Reader }{bytes.NewReader(b)} }
	for name, c := range map[string]struct {
		query  string
		body   io.Reader
		media  string
		status int
		code   string
		says   string
	}{
		"empty":             {body: chunked(nil), status: 400, code: "bad_wav", says: "no bytes at all"},
		"text":              {body: strings.NewReader("to be or not to be"), status: 400, code: "bad_wav", says: `begins with "to b"`},
		"8 bit":             {body: bytes.NewReader(eightBit), status: 400, code: "bad_wav", says: "8 bits a sample"},
		"short header":      {body: bytes.NewReader(sample[:30]), status: 400, code: "bad_wav", says: "at byte 30"},
		"truncated early":   {body: bytes.NewReader(sample[:20_000]), status: 400, code: "bad_wav", says: "at byte 20000: 326006 bytes"},
		"endless preamble":  {body: chunked(append([]byte("RIFF\xff\xff\xff\xffWAVELIST\x00\x00\x20\x00"), make([]byte, 2<<20)...)), status: 413, code: "too_large", says: "1048576"},
		"length says it":    {body: bytes.NewReader(make([]byte, 1<<20+1)), status: 413, code: "too_large", says: "1048576"},
		"form":              {body: bytes.NewReader(sample), media: "multipart/form-data; boundary=x", status: 415, code: "media_type", says: "use audio/wav"},
		"media type":        {body: bytes.NewReader(sample), media: "audio/", status: 415, code: "media_type", says: "audio/"},
		"quality":           {query: "?quality=fine", body: bytes.NewReader(sample), status: 400, code: "query", says: `quality is "fine"`},
		"negative quality":  {query: "?quality=-1", body: bytes.NewReader(sample), status: 400, code: "query", says: "use 0"},
		"quality NaN":       {query: "?quality=NaN", body: bytes.NewReader(sample), status: 400, code: "query", says: "NaN"},
		"infinite quality":  {query: "?quality=Inf", body: bytes.NewReader(sample), status: 400, code: "query", says: "Inf"},
		"timeout":           {query: "?timeout=5", body: bytes.NewReader(sample), status: 400, code: "query", says: "such as 1.5s"},
		"no time":           {query: "?timeout=0s", body: bytes.NewReader(sample), status: 400, code: "query", says: "at most 30s"},
		"too long":          {query: "?timeout=31s", body: bytes.NewReader(sample), status: 400, code: "query", says: "at most 30s"},
		"unknown parameter": {query: "?qualty=1", body: bytes.NewReader(sample), status: 400, code: "query", says: "qualty"},
		"query":             {query: "?quality=%zz", body: bytes.NewReader(sample), status: 400, code: "query", says: "%zz"},
	} {
		t.Run(name, func(t *testing.T) {
			if c.media == "" {
				c.media = "audio/wav"
			}
			checkProblem(t, s.post(t, c.query, c.body, "Content-Type", c.media), c.status, c.code, c.says)
		})
	}
}

func TestRoutes(t *testing.T) {
	s := serve(t, nil)
	for _, c := range []struct {
		method, path string
		status       int
		code, says   string
		allow        string
	}{
		{"GET", "/v1/transcode", 405, "method", "takes POST", "POST"},
		{"DELETE", "/healthz", 405, "method", "takes GET, HEAD", "GET, HEAD"},
		{"POST", "/v1/transcribe", 404, "not_found", "/v1/transcribe", ""},
	} {
		req, err := http.NewRequestWithContext(t.Context(), c.method, s.http.URL+c.path, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.http.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		checkProblem(t, res, c.status, c.code, c.says)
		res.Body.Close()
		if got := res.Header.Get("Allow"); got != c.allow {
			t.Errorf("%s %s: Allow is %q, want %q", c.method, c.path, got, c.allow)
		}
	}
	res, err := s.http.Client().Get(s.http.URL + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || string(body) != `{"places":4,"requests":0,"status":"ok"}`+"\n" {
		t.Errorf("health: %s, %q, %v", res.Status, body, err)
	}
}

// TestOverload: a request that gets no permit is refused at once, before its body
// arrives, and the permit is free again after the other request.
func TestOverload(t *testing.T) {
	s := serve(t, func(o *options) { o.requests = 1 })
	whole := openWAV(t, mono, sweep(2*blockBytes))
	x := s.converse(t, whole, "?quality=0")
	silent, w := io.Pipe()
	defer w.Close()
	checkProblem(t, s.post(t, "", silent), http.StatusServiceUnavailable, "overloaded", "1 requests run")

	go func() {
		_, _ = x.in.Write(whole[headerBytes+blockBytes:])
		x.in.Close()
	}()
	if out, err := io.ReadAll(x.res.Body); err != nil || !bytes.Equal(out, whole) {
		t.Fatalf("the request that had the permit: %d bytes, %v", len(out), err)
	}
	for { // the permit is released after the answer has ended
		res := s.post(t, "", bytes.NewReader(whole))
		if _, err := io.Copy(io.Discard, res.Body); err != nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusOK {
			break
		}
	}
}

// TestDeadline: a request past its deadline gets a 504, or an answer that is cut off
// if it has begun.
func TestDeadline(t *testing.T) {
	s := serve(t, nil)
	whole := openWAV(t, mono, sweep(2*blockBytes))
	for name, sent := range map[string]int{"nothing": 0, "header": headerBytes, "half a block": headerBytes + blockBytes/2} {
		t.Run(name, func(t *testing.T) {
			r, w := io.Pipe()
			defer w.Close()
			go func() { _, _ = w.Write(whole[:sent]) }()
			checkProblem(t, s.post(t, "?timeout=50ms", r), http.StatusGatewayTimeout, "deadline", "longer than its timeout")
		})
	}
	for _, told := range []bool{false, true} {
		t.Run(fmt.Sprintf("midway, told %v", told), func(t *testing.T) {
			t.Parallel() // it lasts until the deadline
			s := serve(t, nil)
			s.late = 1
			if told {
				s.converse(t, whole, "?timeout=2s", "TE", "trailers").checkTrailer("deadline: the request took longer than its timeout")
			} else {
				s.converse(t, whole, "?timeout=2s").checkBreaksOff()
			}
		})
	}
}

// checkBreaksOff checks that the client can see that the answer is incomplete. A
// client that is still sending may get a reset instead of the early end.
func (x *exchange) checkBreaksOff() (out []byte, early bool) {
	x.t.Helper()
	out, err := io.ReadAll(x.res.Body)
	if err == nil || errors.Is(err, context.DeadlineExceeded) || x.res.StatusCode != http.StatusOK || len(out) == 0 {
		x.t.Errorf("%s, %d bytes, %v: want an answer that is cut off", x.res.Status, len(out), err)
	}
	return out, errors.Is(err, io.ErrUnexpectedEOF)
}

func (x *exchange) checkTrailer(want string) []byte {
	x.t.Helper()
	out, err := io.ReadAll(x.res.Body)
	if got := x.res.Trailer.Get(errorTrailer); err != nil || !strings.HasPrefix(got, want) || len(out) == 0 {
		x.t.Errorf("%d bytes, %v, trailer %q, want %q", len(out), err, got, want)
	}
	if !x.res.Close {
		x.t.Error("the connection is kept for another request")
	}
	return out
}

// TestIdleClient: a client that sends nothing, or stops sending, is cut off.
func TestIdleClient(t *testing.T) {
	s := serve(t, func(o *options) { o.idle = time.Second })
	whole := openWAV(t, mono, sweep(2*blockBytes))
	x := s.converse(t, whole, "", "TE", "trailers")
	r, w := io.Pipe()
	defer w.Close()
	checkProblem(t, s.post(t, "", r), http.StatusRequestTimeout, "idle", "nothing came for 1s")
	x.checkTrailer("idle: nothing came for 1s")
}

// TestBreaksMidway: the samples before an error in a WAV are answered; the answer
// then ends incomplete, like the input.
func TestBreaksMidway(t *testing.T) {
	s := serve(t, nil)
	in := readFile(t, sampleFile)
	const sent = 100_001
	want := openWAV(t, mono, nil)
	want = append(want, in[headerBytes:sent-1]...)
	for _, trailers := range []bool{false, true} {
		var header []string
		if trailers {
			header = []string{"TE", "deflate, Trailers"}
		}
		x := &exchange{t: t, res: s.post(t, "?quality=0", bytes.NewReader(in[:sent]), header...)}
		var out []byte
		if trailers {
			out = x.checkTrailer("bad_wav: wav: truncated (unexpected EOF) at byte 100001: ")
		} else {
			var early bool
			if out, early = x.checkBreaksOff(); !early {
				t.Error("it does not end with an unexpected EOF")
			}
		}
		if !bytes.Equal(out, want) {
			t.Errorf("trailers %v: %d bytes instead of the %d before the error", trailers, len(out), len(want))
		}
	}
}

// TestTooLargeMidway: a body that exceeds the limit ends the answer, also when the
// excess is after the samples.
func TestTooLargeMidway(t *testing.T) {
	s := serve(t, func(o *options) { o.maxBytes = int64(headerBytes + 3*blockBytes) })
	for name, whole := range map[string][]byte{
		"samples": openWAV(t, mono, sweep(4*blockBytes)),
		"behind":  append(wholeWAV(t, mono, sweep(blockBytes)), make([]byte, 4*blockBytes)...),
	} {
		t.Run(name, func(t *testing.T) {
			x := s.converse(t, whole, "", "TE", "trailers")
			go func() { _, _ = x.in.Write(whole[headerBytes+blockBytes:]) }()
			x.checkTrailer("too_large: ")
		})
	}
}

// TestSlowStages: while the stages work on a body that was sent completely, the client
// does not count as idle. On a busy machine the client may be idle before: then it
// gets more time.
func TestSlowStages(t *testing.T) {
	whole := openWAV(t, mono, sweep(2*blockBytes/2))
	const least, most = 50 * time.Millisecond, time.Second
	for idle := least; ; idle *= 2 {
		res := slowStages(t, idle).post(t, "?quality=0", bytes.NewReader(whole))
		out, err := io.ReadAll(res.Body)
		if bytes.Equal(out, whole) {
			return
		}
		if idle > most {
			t.Fatalf("%d bytes came out, %d went in: %s, %v", len(out), len(whole), res.Status, err)
		}
	}
}

// slowStages starts a gateway whose stages take longer than a client may be idle.
func slowStages(t *testing.T, idle time.Duration) *service {
	t.Helper()
	return serve(t, func(o *options) {
		o.idle = idle
		o.tweak = func(p *bus.Pipeline, _ *bus.Options) {
			last := &p.Stages[len(p.Stages)-1]
			vocode := last.Handle
			last.Handle = func(task *bus.Task, d *bus.Delivery) error {
				select {
				case <-task.Context().Done(): // the request has ended
				case <-time.After(3 * idle):
				}
				return vocode(task, d)
			}
		}
	})
}

// TestBlockThatTheBusRefuses: an input that the bus refuses ends the request, while
// the client waits.
func TestBlockThatTheBusRefuses(t *testing.T) {
	s := serve(t, func(o *options) {
		o.tweak = func(_ *bus.Pipeline, opts *bus.Options) { opts.Store.MaxObjectBytes = 8 << 10 }
	})
	whole := openWAV(t, mono, sweep(blockBytes))
	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(whole[:headerBytes+blockBytes]) }()
	checkProblem(t, s.post(t, "", r), http.StatusInternalServerError, "failed", "payload too large")
}

// TestStageFails: an error of a stage is a 500 before the answer begins, and cuts
// the answer off afterwards, while the client is still sending.
func TestStageFails(t *testing.T) {
	failing := func(at uint64) *service {
		return serve(t, func(o *options) {
			o.tweak = func(p *bus.Pipeline, _ *bus.Options) {
				last := &p.Stages[len(p.Stages)-1]
				vocode := last.Handle
				last.Handle = func(task *bus.Task, d *bus.Delivery) error {
					if d.Seq == at {
						return errors.New("it fails, as the test says")
					}
					return vocode(task, d)
				}
			}
		})
	}
	whole := openWAV(t, mono, sweep(4*blockBytes))
	blocks := func(from, to int) []byte { return whole[headerBytes+from*blockBytes : headerBytes+to*blockBytes] }
	const says = `edge talker->vocoder, sequence `

	r, w := io.Pipe()
	defer w.Close()
	go func() { _, _ = w.Write(whole[:headerBytes+2*blockBytes]) }()
	checkProblem(t, failing(0).post(t, "", r), http.StatusInternalServerError, "failed", says)

	s := failing(1)
	x := s.converse(t, whole, "")
	go func() { _, _ = x.in.Write(blocks(1, 3)) }()
	x.checkBreaksOff()

	x = s.converse(t, whole, "", "TE", "trailers")
	go func() { _, _ = x.in.Write(blocks(1, 3)) }()
	x.checkTrailer(`failed: bus: `)
	if got := s.bus.Stats().Failed; got != 2 {
		t.Errorf("%d requests failed, want 2", got)
	}
}
