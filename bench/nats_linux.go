package bench

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

const (
	natsAnswers    = "answers"
	maxNATSMessage = 4 * mib // of a message
	natsPatience   = 10 * time.Second
)

// natsWork is the subject at which a process gets its payloads.
func (s peerSpec) natsWork(which int) string {
	if s.Chain > 0 {
		return "work" + strconv.Itoa(which)
	}
	return "work"
}

// A natsSide is a NATS server, and processes that subscribe to subjects there.
type natsSide struct {
	*cluster
	conn    *nats.Conn
	answers *nats.Subscription // of all messages; nil: each message is a request
	spec    peerSpec
	source  []byte
}

func openNATSSide(ctx context.Context, opts Options, spec peerSpec) (side, error) {
	c, err := newCluster(opts)
	if err != nil {
		return nil, err
	}
	s := &natsSide{cluster: c, spec: spec, source: touched(spec.Pattern.Size)}
	return warmedUp(ctx, s, c, spec, s.open(ctx))
}

func (s *natsSide) open(ctx context.Context) (err error) {
	spec := s.spec
	spec.Carrier = byNATSServer
	if spec.Target, err = s.start(ctx, spec); err != nil {
		return err
	}
	spec.Carrier = byNATS
	for spec.Which = range spec.workers() {
		if _, err := s.start(ctx, spec); err != nil {
			return err
		}
	}
	if s.conn, err = nats.Connect(spec.Target); err != nil || spec.Flight > 0 {
		return err
	}
	if s.answers, err = s.conn.SubscribeSync(natsAnswers); err != nil {
		return err
	}
	return errors.Join(s.answers.SetPendingLimits(-1, -1), s.conn.Flush())
}

func (s *natsSide) run(ctx context.Context, n int) (time.Duration, error) {
	return s.timed(ctx, func(ctx context.Context) error {
		if s.spec.Flight > 0 {
			return s.spec.requests(ctx, n, s.request)
		}
		for range n {
			if err := s.exchange(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

func (s *natsSide) request(ctx context.Context) error {
	m, err := s.conn.RequestWithContext(ctx, s.spec.natsWork(0), s.source)
	if err != nil {
		return err
	}
	return readAll(m.Data)
}

func (s *natsSide) exchange(ctx context.Context) error {
	for range s.spec.Pattern.Every {
		if err := s.conn.Publish(s.spec.natsWork(0), s.source); err != nil {
			return err
		}
	}
	for range s.spec.answers() {
		m, err := s.answers.NextMsgWithContext(ctx)
		if err != nil {
			return err
		}
		if err := readAll(m.Data); err != nil {
			return err
		}
	}
	return nil
}

func (s *natsSide) close(ctx context.Context) error {
	if s.conn != nil {
		s.conn.Close()
	}
	return s.cluster.close(ctx)
}

// serveNATSServer is the server, with its defaults except the size of messages.
func serveNATSServer(ctx context.Context, _ peerSpec) error {
	s, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, MaxPayload: maxNATSMessage, NoLog: true, NoSigs: true})
	if err != nil {
		return err
	}
	s.Start()
	if !s.ReadyForConnections(natsPatience) {
		return fmt.Errorf("the NATS server is not ready after %v", natsPatience)
	}
	if err := ready(s.ClientURL()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// serveNATS subscribes, and answers to the reply subject of a request, to the next process, or to
// the caller.
func serveNATS(ctx context.Context, spec peerSpec) error {
	conn, err := nats.Connect(spec.Target)
	if err != nil {
		return err
	}
	next := natsAnswers
	if spec.Which < spec.Chain-1 {
		next = spec.natsWork(spec.Which + 1)
	}
	answer, read, failed := touched(spec.Pattern.Answer), 0, make(chan error, 1)
	fail := func(err error) {
		select {
		case failed <- err:
		default:
		}
	}
	work, err := conn.Subscribe(spec.natsWork(spec.Which), func(m *nats.Msg) {
		if err := readAll(m.Data); err != nil {
			fail(err)
		}
		if read++; read < spec.Pattern.Every {
			return
		}
		read = 0
		to := next
		if m.Reply != "" {
			to = m.Reply
		}
		if err := conn.Publish(to, answer); err != nil {
			fail(err)
		}
	})
	if err != nil {
		return err
	}
	if err := errors.Join(work.SetPendingLimits(-1, -1), conn.Flush(), ready("")); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
		return nil
	}
}
