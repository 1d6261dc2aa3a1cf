package lane

// Stats counts since the lane was opened.
type Stats struct {
	// Messages and Bytes, by the mode that the tensors travelled in.
	Messages, Bytes [3]int64
	// Fallbacks counts messages that travelled through host memory because the
	// mode that was asked for is not to be had; Small those with fewer bytes than
	// the edge's least; Spilt those that the pool had no room for; Failed those
	// that were not sent because a copy failed.
	Fallbacks, Small, Spilt, Failed int64
	// Opened counts messages that were received with tensors on a GPU, and Open
	// those that are not settled.
	Opened int64
	Open   int
}

// Stats returns a copy of the counters.
func (l *Lane) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Open = l.open
	return s
}

func (l *Lane) count(f func(*Stats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.stats)
}

// choose decides how a value travels that was to travel by a mode.
func (s *Sender) choose(o *Outgoing, mode Mode, minBytes, sizeBytes int64) Mode {
	l := s.lane
	switch {
	case o.dev == nil || mode == Default:
		return Default
	case sizeBytes < minBytes:
		l.count(func(s *Stats) { s.Small++ })
		return Default
	case !s.ready(mode):
		l.count(func(s *Stats) { s.Fallbacks++ })
		return Default
	case mode == Pool && sizeBytes+int64(len(o.tensors))*chunkAlign > s.pool.MaxBytes():
		l.count(func(s *Stats) { s.Spilt++ })
		return Default
	}
	return mode
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
		s.Messages[o.mode]++
		s.Bytes[o.mode] += sizeBytes
	})
}
