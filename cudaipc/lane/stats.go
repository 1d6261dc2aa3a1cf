package lane

import (
	"context"
	"fmt"

	"github.com/omnibus-runtime/omnibus/cudaipc"
)

// Stats holds the counters of a lane, from its opening on.
type Stats struct {
	// Messages with tensors on a GPU, by their mode.
	Default Sent `json:"default"`
	IPC     Sent `json:"cuda_ipc"`
	Pool    Sent `json:"cuda_ipc_pool"`
	// Messages that went through host memory although another mode was requested: because it does
	// not work ([Sender.Why] has the reason), because they had fewer bytes than the edge's minimum,
	// or because the pool had no space.
	Fallbacks int64 `json:"fallbacks"`
	Small     int64 `json:"small"`
	Spilt     int64 `json:"spilt"`
	// Failed counts messages that were not sent because a copy failed.
	Failed int64 `json:"failed"`
	// Registered counts the segments of host memory that were registered with a GPU, once each, so
	// that copies run at full speed: the senders' own, those of large objects that tensors were
	// copied to, and those that payloads were read in. Refused counts segments that could not be
	// registered.
	Registered int64 `json:"registered"`
	Refused    int64 `json:"refused"`
	// Bytes that were copied between payloads and a GPU through a staging buffer, because the GPU
	// does not reach the memory; and bytes that were left to the driver, without a free buffer.
	StagedBytes   int64 `json:"staged_bytes"`
	PageableBytes int64 `json:"pageable_bytes"`
	// Open is the number of received messages with tensors on a GPU that are not settled.
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

// counters returns all figures except Open, which is no counter.
func (s *Stats) counters() []*int64 {
	return []*int64{
		&s.Default.Messages, &s.Default.Bytes, &s.IPC.Messages, &s.IPC.Bytes, &s.Pool.Messages, &s.Pool.Bytes,
		&s.Fallbacks, &s.Small, &s.Spilt, &s.Failed, &s.Registered, &s.Refused, &s.StagedBytes, &s.PageableBytes,
	}
}

// Plus adds the figures of two lanes, up to the maximum of [Stats.Validate].
func (s Stats) Plus(other Stats) Stats {
	mine := s.counters()
	for i, n := range other.counters() {
		*mine[i] = min(*mine[i]+*n, maxCounted)
	}
	s.Open += other.Open
	return s
}

// Since returns the counts after an earlier snapshot. Open is the present number.
func (s Stats) Since(earlier Stats) Stats {
	mine := s.counters()
	for i, n := range earlier.counters() {
		*mine[i] -= *n
	}
	return s
}

// maxCounted is more than any real count, and far from the range of 64 bits.
const maxCounted = 1 << 53

// Validate refuses impossible figures: they may come from another process.
func (s Stats) Validate() error {
	for _, n := range append(s.counters(), new(int64(s.Open))) {
		if *n < 0 || *n > maxCounted {
			return fmt.Errorf("%w: %d is no figure of tensors: it is 0 to %d", cudaipc.ErrInvalid, *n, int64(maxCounted))
		}
	}
	return nil
}

// OnCount sets a function that is called whenever a figure has changed, with locks held: f must not
// block, and not call the lane. Call OnCount before the lane is used.
func (l *Lane) OnCount(f func()) { l.onCount = f }

func (l *Lane) count(f func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.stats)
	l.onCount()
}

// choose returns the mode of a value, given the requested one. The only error is the context's.
func (s *Sender) choose(ctx context.Context, o *Outgoing, mode Mode, minBytes, sizeBytes int64) (Mode, error) {
	l := s.lane
	switch {
	case o.dev == nil || mode == Default:
		return Default, nil
	case sizeBytes < minBytes:
		l.count(func(s *Stats) { s.Small++ })
		return Default, nil
	}
	works := mode != Pool || o.dev == l.firstDevice // one GPU may be unable to write to another's memory
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

// sent counts a filled message.
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
