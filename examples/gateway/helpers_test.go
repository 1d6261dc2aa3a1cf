package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/mdct"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// playMain, in the environment, makes the test binary the program.
const playMain = "GATEWAY_TEST_PLAY_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(playMain) != "" {
		main()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// hangs bounds every wait of a test.
const hangs = 30 * time.Second

// service is a gateway that a test talks to.
type service struct {
	*gateway
	http *httptest.Server
	late int64 // requests that are meant to run past their deadline
}

// serve starts a gateway. At the end of the test no request may be alive, no slot
// taken and no payload held.
func serve(t *testing.T, change func(*options)) *service {
	t.Helper()
	o := options{requests: 4, maxBytes: 8 << 20, timeout: hangs, idle: hangs, log: slog.New(slog.DiscardHandler)}
	if change != nil {
		change(&o)
	}
	tweak := o.tweak
	o.tweak = func(p *bus.Pipeline, opts *bus.Options) {
		opts.Store.Memory = shmstore.Heap
		if tweak != nil {
			tweak(p, opts)
		}
	}
	g, err := open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	s := &service{gateway: g, http: httptest.NewUnstartedServer(nil)}
	s.http.Config = g.server()
	s.http.Start()
	t.Cleanup(func() {
		s.http.Close()
		s.checkIdle(t)
		ctx, cancel := context.WithTimeout(context.Background(), hangs)
		defer cancel()
		if err := g.bus.Close(ctx); err != nil { // it names holders of payloads
			t.Errorf("close the bus: %v", err)
		}
	})
	return s
}

// checkIdle waits until the stages have released requests that were cut off. The
// handlers must have returned before, for which http.Close waits.
func (s *service) checkIdle(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), hangs)
	defer cancel()
	if err := s.bus.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	stats := s.bus.Stats()
	if stats.Live != 0 || len(s.permits) != 0 {
		t.Errorf("%d requests alive, %d permits taken", stats.Live, len(s.permits))
	}
	if stats.Deadline != s.late {
		t.Errorf("%d requests ran past their deadline, want %d", stats.Deadline, s.late)
	}
	for _, st := range stats.Stages {
		if st.SlotsFree != st.Slots {
			t.Errorf("stage %s: %d of %d slots free", st.Name, st.SlotsFree, st.Slots)
		}
	}
}

// post sends a request. The answer's body is closed at the end of the test.
func (s *service) post(t *testing.T, query string, body io.Reader, header ...string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+"/v1/transcode"+query, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "audio/wav")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := s.http.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res
}

// mustPost posts and returns the whole answer, which must be a WAV.
func (s *service) mustPost(t *testing.T, query string, body io.Reader) []byte {
	t.Helper()
	res := s.post(t, query, body)
	out, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "audio/wav" {
		t.Fatalf("%s, %d bytes of %s, %v: %.200s", res.Status, len(out), res.Header.Get("Content-Type"), err, out)
	}
	return out
}

// checkProblem checks an answer that is a problem.
func checkProblem(t *testing.T, res *http.Response, status int, code, says string) {
	t.Helper()
	raw, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Error struct{ Code, Message string }
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&got); err != nil {
		t.Fatalf("%v in %q", err, raw)
	}
	if res.StatusCode != status || got.Error.Code != code || !strings.Contains(got.Error.Message, says) {
		t.Errorf("%s, %s: %s; want %d, %s: ... %s", res.Status, got.Error.Code, got.Error.Message, status, code, says)
	}
	if c := res.Header.Get("Content-Type"); c != "application/json" {
		t.Errorf("the problem comes as %q", c)
	}
	if after := res.Header.Get("Retry-After"); (after != "") != (status == http.StatusServiceUnavailable) {
		t.Errorf("Retry-After is %q with status %d", after, status)
	}
}

var mono = wav.Format{Rate: 22050, Channels: 1}

const headerBytes = 44

// The output is hopBytes behind the input. blockBytes of input make a chunk.
var (
	hopBytes   = 2 * mdct.HopFor(mono.Rate)
	blockBytes = codec.ChunkFrames * hopBytes
)

// openWAV is a WAV whose sizes are left open, as the gateway answers.
func openWAV(t *testing.T, f wav.Format, pcm []int16) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := wav.NewWriter(struct{ io.Writer }{&b}, f)
	if err = errors.Join(err, w.WriteSamples(pcm), w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// wholeWAV is a WAV with its sizes filled in.
func wholeWAV(t *testing.T, f wav.Format, pcm []int16) []byte {
	t.Helper()
	file, err := os.Create(filepath.Join(t.TempDir(), "whole.wav"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	w, err := wav.NewWriter(file, f)
	if err = errors.Join(err, w.WriteSamples(pcm), w.Close()); err != nil {
		t.Fatal(err)
	}
	return readFile(t, file.Name())
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sweep is n samples of a loud tone that rises.
func sweep(n int) []int16 {
	pcm := make([]int16, n)
	for i := range pcm {
		x := float64(i)
		pcm[i] = int16(30000 * math.Sin(x*x/40000))
	}
	return pcm
}

// exchange is a request whose body and answer a test controls.
type exchange struct {
	t   *testing.T
	in  *io.PipeWriter
	res *http.Response
}

// converse posts the first blocks of a WAV and waits for the answer to begin.
func (s *service) converse(t *testing.T, whole []byte, query string, header ...string) *exchange {
	t.Helper()
	r, w := io.Pipe()
	t.Cleanup(func() { w.CloseWithError(errors.New("the test is over")) })
	first := whole[:headerBytes+blockBytes]
	go func() { _, _ = w.Write(first) }()
	return &exchange{t: t, in: w, res: s.post(t, query, r, header...)}
}

func (x *exchange) read(n int) []byte {
	x.t.Helper()
	b := make([]byte, n)
	if got, err := io.ReadFull(x.res.Body, b); err != nil {
		x.t.Fatalf("%d of %d bytes of the answer, then %v", got, n, err)
	}
	return b
}
