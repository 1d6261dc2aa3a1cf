package host

import (
	"errors"
	"fmt"
	"math"

	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
	"github.com/omnibus-runtime/omnibus/internal/directory"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/hostnode"
	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// publish answers publish. It owns the descriptor.
func (s *session) publish(m *wire.Publish, fd int) {
	name := lane.Name{Pool: m.Pool, Number: m.Number}
	if err := s.srv.services.Directory.PublishBy(s, name, fd, int64(min(m.Size, math.MaxInt64))); err != nil {
		s.queue(hostnode.DirectoryFailed(m.Token, err))
		return
	}
	faultpoint.Hit("host-published")
	s.queue(&wire.Published{Token: m.Token})
}

// withdraw removes a name that the client published.
func (s *session) withdraw(m *wire.Withdraw) {
	s.srv.services.Directory.WithdrawBy(s, lane.Name{Pool: m.Pool, Number: m.Number})
}

// find answers find.
func (s *session) find(m *wire.Find) {
	err := s.srv.services.Directory.Lookup(lane.Name{Pool: m.Pool, Number: m.Number}, func(e directory.Entry) error {
		found := &wire.Found{Token: m.Token, Owner: e.Owner, PID: uint32(e.PID), Size: uint64(e.SizeBytes)}
		err := s.sender.Queue(found, e.FD, e.PIDFD)
		if err == nil || errors.Is(err, peer.ErrGone) || errors.Is(err, peer.ErrClosed) {
			return nil // as in queue
		}
		// Too many answers wait for the client to read them, or this process has no descriptors left
		// for another one.
		return fmt.Errorf("%w: the answer cannot be sent: %w", lane.ErrFull, err)
	})
	if err != nil {
		s.queue(hostnode.DirectoryFailed(m.Token, err))
	}
}

// PID implements directory.Process.
func (s *session) PID() int { return s.proc.PID() }

// FD implements directory.Process.
func (s *session) FD() int { return s.proc.FD() }

// Gone implements directory.Process.
func (s *session) Gone() bool { return s.proc.Exited() || s.conn.HungUp() }
