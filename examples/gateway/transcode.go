package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/omnibus-runtime/omnibus/examples/internal/codec"
)

// transcode answers POST /v1/transcode: the body is a WAV, and so is the
// answer. They flow at the same time.
func (g *gateway) transcode(w http.ResponseWriter, r *http.Request) {
	a := newAnswer(w, r, g.opts)
	if err := g.stream(a, r); err != nil {
		g.opts.log.Info("a request failed", "error", err, "remote", r.RemoteAddr)
		a.fail(err)
	}
}

// stream runs one request on the bus.
func (g *gateway) stream(a *answer, r *http.Request) error {
	p, err := g.params(r)
	if err != nil {
		return err
	}
	select {
	case g.places <- struct{}{}:
		defer func() { <-g.places }()
	default:
		return problem{http.StatusServiceUnavailable, "overloaded", fmt.Sprintf("%d requests run, which is all there may be: try again", cap(g.places))}
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.timeout)
	defer cancel()
	body := g.body(ctx, a, r)
	up, err := openUpload(body, p.quality)
	if err != nil {
		return err
	}
	// With a place here, there is one on the bus: now, or as soon as the stages
	// have let go of a request that was cut short.
	req, err := g.bus.Stream(ctx)
	if err != nil {
		return err
	}
	fed := make(chan error, 1)
	go func() { fed <- up.feed(req) }()
	err = a.receive(ctx, req, up.wav.Format())
	if err != nil {
		req.Close()
		body.stop(errStopped)
	}
	return cmp.Or(<-fed, err) // what was wrong with the input is why the request ended
}

// body is the request's body until the deadline of ctx. That a client hangs up
// needs no watching here: a read tells.
func (g *gateway) body(ctx context.Context, a *answer, r *http.Request) *body {
	// The reader is not given the writer: it would use it beside us.
	b := &body{in: http.MaxBytesReader(nil, r.Body, g.opts.maxBytes), rc: a.rc, idle: g.opts.idle}
	context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			b.stop(context.DeadlineExceeded)
		}
	})
	return b
}

// params is what a request asks for.
type params struct {
	quality float64 // the quantiser's step as a fraction of the signal's level
	timeout time.Duration
}

// params checks all that can be checked before the body.
func (g *gateway) params(r *http.Request) (params, error) {
	p := params{quality: codec.DefaultRatio, timeout: g.opts.timeout}
	if !r.ProtoAtLeast(1, 1) {
		return p, problem{http.StatusHTTPVersionNotSupported, "http_version", "the answer's length is not known when it begins: use HTTP/1.1"}
	}
	if err := checkType(r.Header.Get("Content-Type")); err != nil {
		return p, err
	}
	if r.ContentLength > g.opts.maxBytes {
		return p, tooLarge(g.opts.maxBytes)
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return p, badQuery("%v", err)
	}
	for name, values := range query {
		value := values[len(values)-1]
		switch name {
		case "quality":
			p.quality, err = strconv.ParseFloat(value, 64)
			if err != nil || !(p.quality >= 0) || math.IsInf(p.quality, 0) { // so written, it catches NaN too
				return p, badQuery("quality is %q: use 0, which changes no sample, or a positive number; the default is %v", value, codec.DefaultRatio)
			}
		case "timeout":
			p.timeout, err = time.ParseDuration(value)
			if err != nil || p.timeout <= 0 || p.timeout > g.opts.timeout {
				return p, badQuery("timeout is %q: use a time such as 1.5s, of at most %v", value, g.opts.timeout)
			}
		default:
			return p, badQuery("parameter %q is not known: use quality and timeout", name)
		}
	}
	return p, nil
}

// checkType takes the names that WAV goes by, a body without one, and what curl and
// Python's urllib call every body that they were told nothing of: the body itself says
// whether it is a WAV.
func checkType(header string) error {
	if header == "" {
		return nil
	}
	media, _, err := mime.ParseMediaType(header)
	switch media {
	case "audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave", "application/octet-stream",
		"application/x-www-form-urlencoded":
		if err == nil {
			return nil
		}
	}
	return problem{http.StatusUnsupportedMediaType, "media_type", fmt.Sprintf("the Content-Type is %q: use audio/wav", header)}
}
