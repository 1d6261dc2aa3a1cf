package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime"
	"strconv"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// Defaults of the options, and constants.
const (
	defaultRequests = 16
	defaultMaxBytes = 1 << 30
	defaultTimeout  = 10 * time.Minute
	defaultIdle     = 30 * time.Second

	headerTimeout  = 10 * time.Second // for a client to send the head of a request
	keepAliveLimit = 2 * time.Minute  // for a connection between requests

	// storePerRequest gives each of the four edges a window of 1.1 MiB, which
	// holds the largest payload, a chunk of stereo coefficients at 192 kHz.
	storePerRequest = 6 << 20
)

// options configure a gateway. All must be set.
type options struct {
	requests int           // in flight at a time
	maxBytes int64         // of one body
	timeout  time.Duration // of one request
	idle     time.Duration // of a client that neither sends nor reads
	log      *slog.Logger

	// tweak changes the pipeline and options of the bus: tests inject faults with it.
	tweak func(*bus.Pipeline, *bus.Options)
}

func (o options) validate() error {
	var errs []error
	if o.requests < 1 {
		errs = append(errs, fmt.Errorf("-requests is %d: use 1 or more", o.requests))
	}
	if o.maxBytes < 1 {
		errs = append(errs, fmt.Errorf("-max-bytes is %d: use 1 or more", o.maxBytes))
	}
	if o.timeout <= 0 || o.idle <= 0 {
		errs = append(errs, fmt.Errorf("-timeout is %v and -idle %v: use more than 0", o.timeout, o.idle))
	}
	return errors.Join(errs...)
}

// gateway is the bus and its HTTP interface.
type gateway struct {
	opts    options
	bus     *bus.Bus
	permits chan struct{} // holds one for each request that is being answered
}

// open starts the bus. Close it when the server has ended.
func open(ctx context.Context, o options) (*gateway, error) {
	// Replicas work in parallel, and a replica alternates between its requests;
	// together they have capacity for all requests.
	replicas := min(runtime.GOMAXPROCS(0), o.requests)
	p := pipeline(replicas, (o.requests+replicas-1)/replicas)
	opts := bus.Options{
		Name:        "gateway",
		MaxRequests: o.requests,
		Store:       shmstore.Options{ArenaBytes: int64(o.requests) * storePerRequest},
		Logger:      o.log,
	}
	if o.tweak != nil {
		o.tweak(&p, &opts)
	}
	b, err := bus.Open(ctx, p, opts)
	if err != nil {
		return nil, err
	}
	return &gateway{opts: o, bus: b, permits: make(chan struct{}, o.requests)}, nil
}

// server sets the limits that the handlers rely on. A handler that streams extends its
// own deadlines; the server sets them anew for each request. If no handler reads a body,
// the server reads a part of it, before or after its answer, and needs time for the
// answer afterwards.
func (g *gateway) server() *http.Server {
	return &http.Server{
		Handler:           g.handler(),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       g.opts.idle,
		WriteTimeout:      2 * g.opts.idle,
		IdleTimeout:       keepAliveLimit,
		ErrorLog:          slog.NewLogLogger(g.opts.log.Handler(), slog.LevelWarn),
	}
}

// drain waits for the requests, and cuts off those that have not ended after grace.
func drain(server *http.Server, grace time.Duration) error {
	ctx, cancel := context.WithTimeout(context.Background(), grace)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests were cut off that still ran after %v: %w", grace, err), server.Close())
	}
	return nil
}

func (g *gateway) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/transcode", g.transcode)
	mux.HandleFunc("GET /healthz", g.health)
	// The mux would answer these itself, but not in JSON.
	mux.HandleFunc("/v1/transcode", g.onlyBy("POST"))
	mux.HandleFunc("/healthz", g.onlyBy("GET, HEAD"))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.opts.refuse(w, r, problem{http.StatusNotFound, "not_found", fmt.Sprintf("there is no %s: use /v1/transcode or /healthz", r.URL.Path)})
	})
	return mux
}

func (g *gateway) onlyBy(methods string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", methods)
		g.opts.refuse(w, r, problem{http.StatusMethodNotAllowed, "method", fmt.Sprintf("%s takes %s, not %s", r.URL.Path, methods, r.Method)})
	}
}

// health answers GET /healthz with the load of the gateway.
func (g *gateway) health(w http.ResponseWriter, _ *http.Request) {
	writeJSON(w, http.StatusOK, map[string]any{
		"status":   "ok",
		"requests": len(g.permits),
		"places":   cap(g.permits),
	})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	text, err := json.Marshal(v)
	if err != nil {
		panic(err) // nothing in it depends on input
	}
	text = append(text, '\n')
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(text))) // so that the flush completes the answer
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_, _ = w.Write(text) // fails if the client has closed the connection
}
