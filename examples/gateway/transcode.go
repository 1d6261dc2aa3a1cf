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
// answer. Both are streamed at the same time.
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
	case g.permits <- struct{}{}:
		defer func() { <-g.permits }()
	default:
		return problem{http.StatusServiceUnavailable, "overloaded", fmt.Sprintf("%d requests run, which is all there may be: try again", cap(g.permits))}
	}
	ctx, cancel := context.WithTimeout(r.Context(), p.timeout)
	defer cancel()
	body := g.body(ctx, a, r)
	up, err := openUpload(body, p.quality)
	if err != nil {
		return err
	}
	// The bus has as many permits as the gateway: one is free now, or as soon as the
	// stages have released a request that was cut off.
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
	return cmp.Or(<-fed, err) // an error of the input is the cause of the other
}

// body is the request's body until the deadline of ctx. When the client hangs up, a
// read returns an error.
func (g *gateway) body(ctx context.Context, a *answer, r *http.Request) *body {
	// Without the ResponseWriter, which MaxBytesReader would use concurrently.
	b := &body{in: http.MaxBytesReader(nil, r.Body, g.opts.maxBytes), rc: a.rc, idle: g.opts.idle}
	context.AfterFunc(ctx, func() {
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			b.stop(context.DeadlineExceeded)
		}
	})
	return b
}

// params are the parameters of a request.
type params struct {
	quality float64 // the quantiser's step as a fraction of the signal's level
	timeout time.Duration
}

// params checks everything that can be checked before the body.
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
			if err != nil || !(p.quality >= 0) || math.IsInf(p.quality, 0) { // in this form it rejects NaN as well
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

// checkType accepts the media types of WAV, no type, and the default types of curl and
// Python's urllib: the body itself shows whether it is a WAV.
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
