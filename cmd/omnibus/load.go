package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// maxLatencies bounds the latencies for the percentiles: those of the last requests.
const maxLatencies = 1 << 20

// A loadReport is the summary of many requests.
type loadReport struct {
	Requests  int           `json:"requests"`
	Completed int64         `json:"completed"`
	Failed    int64         `json:"failed"`
	Results   int64         `json:"results"`
	Bytes     int64         `json:"result_bytes"`
	Took      time.Duration `json:"took_ns"`
	PerSecond float64       `json:"requests_per_second"`
	P50       time.Duration `json:"p50_ns"`
	P99       time.Duration `json:"p99_ns"`
	Max       time.Duration `json:"max_ns"`
	FirstErr  string        `json:"first_error,omitempty"`
}

// load submits the input many times and writes the summary.
func (s *submission) load(ctx context.Context, to io.Writer, node *node.Node, input any) error {
	var (
		next, completed, failed, results, size atomic.Int64

		mu        sync.Mutex
		latencies []time.Duration
		firstErr  error
		workers   sync.WaitGroup
	)
	began := time.Now()
	for range min(s.concurrency, s.count) {
		workers.Go(func() {
			for ctx.Err() == nil && next.Add(1) <= int64(s.count) {
				start := time.Now()
				err := s.one(ctx, node, input, func(d *bus.Delivery) error {
					results.Add(1)
					size.Add(int64(len(d.Bytes())))
					return nil
				})
				took := time.Since(start)
				mu.Lock()
				switch {
				case err != nil:
					failed.Add(1)
					if firstErr == nil {
						firstErr = err
					}
				case len(latencies) < maxLatencies:
					latencies = append(latencies, took)
				default:
					latencies[completed.Load()%maxLatencies] = took
				}
				if err == nil {
					completed.Add(1)
				}
				mu.Unlock()
			}
		})
	}
	workers.Wait()
	r := loadReport{Requests: s.count, Completed: completed.Load(), Failed: failed.Load(), Results: results.Load(), Bytes: size.Load(), Took: time.Since(began)}
	r.measure(latencies)
	if firstErr == nil && completed.Load() < int64(s.count) { // a signal came between two requests
		firstErr = context.Cause(ctx)
	}
	if firstErr != nil {
		r.FirstErr = firstErr.Error()
	}
	if err := s.writeLoad(to, &r); err != nil {
		return err
	}
	return outcomeError(firstErr)
}

func (r *loadReport) measure(latencies []time.Duration) {
	if len(latencies) == 0 {
		return
	}
	slices.Sort(latencies)
	at := func(q float64) time.Duration { return latencies[min(int(q*float64(len(latencies))), len(latencies)-1)] }
	r.PerSecond = float64(r.Completed) / r.Took.Seconds()
	r.P50, r.P99, r.Max = at(0.5), at(0.99), latencies[len(latencies)-1]
}

func (s *submission) writeLoad(to io.Writer, r *loadReport) error {
	if s.output.word == outputJSON {
		return writeJSON(to, r)
	}
	_, err := fmt.Fprintf(to, "%d of %d completed in %s, %.0f/s; p50 %s, p99 %s, max %s; %d results, %s\n",
		r.Completed, r.Requests, timeText(r.Took), r.PerSecond, timeText(r.P50), timeText(r.P99), timeText(r.Max), r.Results, sizeText(r.Bytes))
	return err
}
