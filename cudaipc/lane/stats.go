package lane

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Stats counts since the lane was opened.
type Stats struct {
	// What was sent with tensors on a GPU, by how they travelled.
	Default Sent `json:"default"`
	IPC     Sent `json:"cuda_ipc"`
	Pool    Sent `json:"cuda_ipc_pool"`
	// Of those that went through host memory although another mode was asked for:
	// because that is not to be had ([Sender.Why] says why), because they had fewer
	// bytes than the edge's least, or because the pool had no room.
	Fallbacks int64 `json:"fallbacks"`
	Small     int64 `json:"small"`
	Spilt     int64 `json:"spilt"`
	// Failed were not sent because a copy failed.
	Failed int64 `json:"failed"`
	// Registered are the segments in host memory that a GPU was told of, once each, so
	// that it copies from and to them at full speed: the senders' own, those of large
	// objects that tensors were copied to, and those that payloads were read in. Refused are
	// those that it was not, or that it refused.
	Registered int64 `json:"registered"`
	Refused    int64 `json:"refused"`
	// What was copied from a payload to a GPU, or to a payload from there, through a
	// staging buffer, because the GPU does not reach it where it lies; and what was left
	// to the driver, for want of a buffer.
	StagedBytes   int64 `json:"staged_bytes"`
	PageableBytes int64 `json:"pageable_bytes"`
	// Open is the number of received messages with tensors on a GPU that are not
	// settled.
	Open int `json:"open"`
}

// Sent counts messages, and the bytes of their tensors on a GPU.
type Sent struct {
	Messages int64 `json:"messages"`
	Bytes    int64 `json:"bytes"`
}

// Stats returns a copy of the counters.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Open = l.openMessages
	return s
}

// counters are all figures but Open, which is no counter.
func (s *Stats) counters() []*int64 {
	return []*int64{
		&s.Default.Messages, &s.Default.Bytes, &s.IPC.Messages, &s.IPC.Bytes, &s.Pool.Messages, &s.Pool.Bytes,
		&s.Fallbacks, &s.Small, &s.Spilt, &s.Failed, &s.Registered, &s.Refused, &s.StagedBytes, &s.PageableBytes,
	}
}

// Plus adds up the figures of two lanes, up to the most that [Stats.Validate] takes.
func (s Stats) Plus(other Stats) Stats {
	mine := s.counters()
	for i, n := range other.counters() {
		*mine[i] = min(*mine[i]+*n, maxCounted)
	}
	s.Open += other.Open
	return s
}

// Since is what was counted after an earlier snapshot. What is open is open now.
func (s Stats) Since(earlier Stats) Stats {
	mine := s.counters()
	for i, n := range earlier.counters() {
		*mine[i] -= *n
	}
	return s
}

// mostCounted is more than anything counts to, and far from what 64 bits hold.
const maxCounted = 1 << 53

// Validate reports figures that nobody can have counted: they may come from
// another process.
func (s Stats) Validate() error {
	for _, n := range append(s.counters(), new(int64(s.Open))) {
		if *n < 0 || *n > maxCounted {
			return fmt.Errorf("%w: %d is no figure of tensors: it is 0 to %d", cudaipc.ErrInvalid, *n, int64(maxCounted))
		}
	}
	return nil
}

// OnCount has f called whenever a figure has changed, with locks held: f must not
// wait, and not call the lane. It comes before the lane is used.
func (l *Lane) OnCount(f func()) { l.onCount = f }

func (l *Lane) count(f func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.stats)
	l.onCount()
}

// choose decides how a value travels that was to travel by a mode. The only error is
// the context's.
func (s *Sender) choose(ctx context.Context, o *Outgoing, mode Mode, minBytes, sizeBytes int64) (Mode, error) {
	l := s.lane
	switch {
	case o.dev == nil || mode == Default:
		return Default, nil
	case sizeBytes < minBytes:
		l.count(func(s *Stats) { s.Small++ })
		return Default, nil
	}
	works := mode != Pool || o.dev == l.firstDevice // whether one GPU writes to another's memory is not to be relied on
	if works {
		var err error
		if works, err = s.prepareMode(ctx, mode); err != nil {
			return Default, err
		}
	}
	switch {
	case !works:
		l.count(func(s *Stats) { s.Fallbacks++ })
		return Default, nil
	case mode == Pool && sizeBytes+int64(len(o.tensors))*chunkAlign > s.pool.MaxBytes():
		l.count(func(s *Stats) { s.Spilt++ })
		return Default, nil
	}
	return mode, nil
}

// sent counts a message that was filled.
func (l *Lane) sent(o *Outgoing) {
	if o.dev == nil {
		return
	}
	var sizeBytes int64
	for _, t := range o.tensors {
		sizeBytes += t.from.Bytes()
	}
	l.count(func(s *Stats) {
		sent := [...]*Sent{Default: &s.Default, IPC: &s.IPC, Pool: &s.Pool}[o.mode]
		sent.Messages++
		sent.Bytes += sizeBytes
	})
}
