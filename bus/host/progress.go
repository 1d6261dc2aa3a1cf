package host

import (
	"fmt"
	"strings"

	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// Progress returns a figure that changes when the host makes progress, and a text that says what waits
// for the host; empty: nothing does. Work that a process or a handler has does not wait for the host,
// however long it takes, nor does a request whose caller has the next step. Progress takes the same
// locks as a status.
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
		all = append(all, fmt.Sprintf("%d requests that wait for a slot or for space", p.Blocked))
	}
	return moved, strings.Join(all, "; ")
}

// hasWork reports whether the client has deliveries that it has not finished, may have direct
// deliveries, or does not read its messages.
func (s *session) hasWork() bool {
	expects, _ := s.direct.expected(0)
	return s.account.Tally(accounts.Sent).Payloads > 0 || expects > 0 || s.sender.Blocked() > 0
}

// keepsMemory reports whether the client holds memory without work: views, or values of the exchange.
func (s *session) keepsMemory() bool {
	for _, why := range []accounts.HoldState{accounts.Kept, accounts.HungUp, accounts.Fetched} {
		if s.account.Tally(why).Payloads > 0 {
			return true
		}
	}
	return false
}

// progressWhenHandled is added to the session's progress when a message has been handled; 1 was added
// before. A message that is no work, such as a question for a status, takes that 1 back.
func progressWhenHandled(m wire.Message) uint64 {
	switch m.(type) {
	case *wire.Put, *wire.Finish, *wire.Release, *wire.Ended, *wire.CloseSend, *wire.Submit, *wire.Close,
		*wire.AbortRequest, *wire.Streamed, *wire.Place, *wire.Fetch, *wire.Withdraw, *wire.Cleanup, *wire.Serve, *wire.Leave:
		return 1
	}
	return ^uint64(0)
}
