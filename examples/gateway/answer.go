package main

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	tensors "github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

// errorTrailer is the trailer with the reason why an answer ended early, for clients
// that send "TE: trailers".
const errorTrailer = "Gateway-Error"

// answer is the response to a client: a WAV, written while it is produced, or a problem.
type answer struct {
	w        http.ResponseWriter
	r        *http.Request
	rc       *http.ResponseController
	opts     options
	trailers bool // the client reads them
	begun    bool // status 200 is written
}

func newAnswer(w http.ResponseWriter, r *http.Request, o options) *answer {
	a := &answer{w: w, r: r, rc: http.NewResponseController(w), opts: o}
	for _, te := range r.Header.Values("TE") {
		for coding := range strings.SplitSeq(te, ",") {
			a.trailers = a.trailers || strings.EqualFold(strings.TrimSpace(coding), "trailers")
		}
	}
	// Otherwise the server would read the body to its end before it answers.
	// It fails on HTTP/2, which does not need it.
	_ = a.rc.EnableFullDuplex()
	return a
}

// receive writes the samples as they arrive. The answer begins with the first
// sample: an error before that has a status of its own.
func (a *answer) receive(ctx context.Context, req *bus.Request, f wav.Format) error {
	var out *wav.Writer
	// The request ends with ctx, and returns the reason: it is enough to wait for the request.
	for d, err := range req.Results(context.WithoutCancel(ctx)) {
		if err != nil {
			return err
		}
		pcm, err := samples(d)
		if err != nil {
			return err
		}
		if out == nil {
			a.begin()
			if out, err = wav.NewWriter(a, f); err != nil {
				return err
			}
		}
		if err := out.WriteSamples(pcm); err != nil {
			return err
		}
		if err := a.rc.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func samples(d *bus.Delivery) ([]int16, error) {
	x, err := d.Tensor()
	if err != nil {
		return nil, err
	}
	return tensors.View[int16](x)
}

func (a *answer) begin() {
	h := a.w.Header()
	h.Set("Content-Type", "audio/wav")
	h.Set("Cache-Control", "no-store")
	if a.trailers {
		// An answer that ends early leaves a body unread: the connection could not
		// carry another request.
		h.Set("Connection", "close")
		h.Set("Trailer", errorTrailer)
	}
	a.begun = true
}

// Write implements io.Writer. Every write has the time of an idle client: a
// client that reads nothing for so long is cut off.
func (a *answer) Write(p []byte) (int, error) {
	if err := a.extend(); err != nil {
		return 0, err
	}
	return a.w.Write(p)
}

func (a *answer) extend() error { return a.rc.SetWriteDeadline(time.Now().Add(a.opts.idle)) }

// fail answers a failed request: with a problem if nothing was written yet. An
// answer that has begun must not look complete. In chunked coding, an incomplete
// answer has no last chunk; but trailers come after the last chunk. So a client
// that reads trailers gets the reason in a trailer, and any other client a
// connection that is closed before the last chunk.
func (a *answer) fail(err error) {
	_ = a.extend() // fails when the connection is closed
	p := problemOf(err)
	switch {
	case !a.begun:
		a.opts.refuse(a.w, a.r, p)
	case a.trailers:
		a.w.Header().Set(errorTrailer, p.line())
	default:
		panic(http.ErrAbortHandler)
	}
}
