package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Now is Queue of a message that is to have been sent when it returns: where it would have
// to wait for the peer to read it is [ErrBacklog], and is not sent.
func (s *Sender) Now(m wire.Message) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.clear()
	err := s.overLocked()
	switch {
	case err != nil:
	case !free:
		err = ErrBacklog
	default:
		err = s.sendNow(m, nil, false)
	}
	if err != nil {
		return fmt.Errorf("send message: %w", err)
	}
	return nil
}

// clear sends what is queued, as far as there is room, and waits for other goroutines that
// do. It reports whether nothing is left. s.mu is held, and given up meanwhile.
func (s *Sender) clear() bool {
	for {
		for s.writing && s.blockedSince.IsZero() {
			s.free.Wait()
		}
		if s.writing {
			return false
		}
		if len(s.queue) == 0 {
			return true
		}
		if s.flushLocked(); len(s.queue) > 0 && !s.writing {
			return false
		}
	}
}
