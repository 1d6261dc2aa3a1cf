package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/examples/internal/wav"
)

const (
	retryAfterSeconds = "1"
	maxTrailerBytes   = 512
)

// problem is an error with the answer to it.
type problem struct {
	status int
	code   string // for programs
	text   string // for people: what, where, what to do
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

// problemOf finds the answer to an error.
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

func writeProblem(w http.ResponseWriter, p problem) {
	if p.status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", retryAfterSeconds)
	}
	writeJSON(w, p.status, map[string]any{"error": map[string]string{"code": p.code, "message": p.text}})
}
