package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

const (
	retryAfterSeconds = "1"
	maxTrailerBytes   = 512
)

// problem is an error with its HTTP answer.
type problem struct {
	status int
	code   string // for programs
	text   string // for people: the error, its place, and advice
}

func (p problem) Error() string { return p.text }

// line is the problem as the value of a header.
func (p problem) line() string {
	text := strings.Join(strings.Fields(p.code+": "+p.text), " ")
	return text[:min(len(text), maxTrailerBytes)]
}

func badQuery(format string, args ...any) problem {
	return problem{http.StatusBadRequest, "query", fmt.Sprintf(format, args...)}
}

func tooLarge(limit int64) problem {
	return problem{http.StatusRequestEntityTooLarge, "too_large", fmt.Sprintf("the body has more than the %d bytes that are allowed: send it in parts", limit)}
}

// problemOf returns the problem of an error.
func problemOf(err error) problem {
	var p problem
	var format *wav.FormatError
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, bus.ErrDeadline):
		return problem{http.StatusGatewayTimeout, "deadline", "the request took longer than its timeout"}
	case errors.As(err, &p):
		return p
	case errors.As(err, &format):
		return problem{http.StatusBadRequest, "bad_wav", err.Error()}
	case errors.Is(err, bus.ErrClosed):
		return problem{http.StatusServiceUnavailable, "closing", "the gateway is closing: try again elsewhere, or later"}
	default:
		return problem{http.StatusInternalServerError, "failed", err.Error()}
	}
}

// Bounds on reading and dropping the body of a refused request.
const (
	lingerBytes = 64 << 20
	lingerTime  = 5 * time.Second
)

// refuse answers a request whose body may still be in transit. The server would close the
// connection, at once if the request has Connection: close, and otherwise after half a second
// in which it does not read. A client that sends the whole body before it reads would then get
// a reset, and no answer. So refuse reads and drops the body, within bounds. A client that reads
// has the whole answer before that.
//
// See closeWriteAndWait of net/http, and section 9.6 of RFC 9112.
func (o options) refuse(w http.ResponseWriter, r *http.Request, p problem) {
	if r.Body == http.NoBody {
		writeProblem(w, p)
		return
	}
	w.Header().Set("Connection", "close") // the body may not be read to its end
	rc := http.NewResponseController(w)
	// The first allows reading the body after the answer. All fail when the connection is closed.
	_ = rc.EnableFullDuplex()
	writeProblem(w, p)
	_ = rc.Flush()
	_ = rc.SetReadDeadline(time.Now().Add(min(lingerTime, o.idle)))
	_, _ = io.CopyN(io.Discard, r.Body, lingerBytes)
}

func writeProblem(w http.ResponseWriter, p problem) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfterSeconds)
	}
	writeJSON(w, p.status, map[string]any{"error": map[string]string{"code": p.code, "message": p.text}})
}
