package host

import (
	"fmt"
	"strings"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Progress says whether the host moves: it gives a figure that changes when anything moves, and what
// waits for the host; empty: nothing does. Work that a process or a handler has does not wait for
// the host, however long that takes, and neither does a request whose caller has the next step.
// Progress takes the locks that a status takes.
func (s *Server) Progress() (moved uint64, waits string) {
	p := s.backend.Progress()
	moved = p.Moved
	kept := p.Stored
	var all []string
	for _, sess := range s.live() {
		progress := sess.progress.Load()
		moved += progress
		if progress%2 == 1 {
			all = append(all, "a message of "+sess.Describe()+" is being handled")
		}
		p.Working = p.Working || sess.hasWork()
		kept = kept || sess.keepsMemory()
	}
	if p.Waiting > 0 && !p.Working {
		all = append(all, fmt.Sprintf("%d requests with work that no process has", p.Waiting))
	}
	if p.Blocked > 0 && !p.Working && !p.AtCaller && !kept {
		all = append(all, fmt.Sprintf("%d requests that wait for a slot or for room", p.Blocked))
	}
	return moved, strings.Join(all, "; ")
}

// hasWork reports whether the client has payloads that it has not finished, may have some that
// went past the host, or does not read what it is sent.
func (s *session) hasWork() bool {
	expects, _ := s.direct.expected(0)
	return s.account.Tally(accounts.Sent).Payloads > 0 || expects > 0 || s.sender.Blocked() > 0
}

// keepsMemory reports whether the client has memory that is not of work: views, or values of the exchange.
func (s *session) keepsMemory() bool {
	for _, why := range []accounts.Why{accounts.Kept, accounts.Left, accounts.Fetched} {
		if s.account.Tally(why).Payloads > 0 {
			return true
		}
	}
	return false
}

// progressWhenHandled is what a message adds to the pulse of its session when it has been handled. The pulse was raised
// by one when that began. A message that is no work, such as the question for a status, is no movement.
func progressWhenHandled(m wire.Message) uint64 {
	switch m.(type) {
	case *wire.Put, *wire.Finish, *wire.Release, *wire.Ended, *wire.CloseSend, *wire.Submit, *wire.Close,
		*wire.AbortRequest, *wire.Streamed, *wire.Place, *wire.Fetch, *wire.Withdraw, *wire.Cleanup, *wire.Serve, *wire.Leave:
		return 1
	}
	return ^uint64(0)
}
