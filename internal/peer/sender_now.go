package peer

import (
	"fmt"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Now is Queue of a message that the peer receives, unless it dies first: where the message would
// have to wait for the peer to read is [ErrBacklog], and the message is not sent. It is [ErrGone] when either
// end has hung up, for a peer that lives and has hung up may not read its lane any more.
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
	if err == nil && s.conn.hungUp() { // after it was sent: a peer that hangs up reads its lane once more
		err = ErrGone
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
