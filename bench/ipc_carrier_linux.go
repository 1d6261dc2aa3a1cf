package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// A carrier is one end of a means to move payloads between two processes. Both
// ends are alike.
type carrier interface {
	// send copies a payload to where the other process reads it.
	send(payload []byte) error
	// receive waits for a payload of that size, reads it, and lets go of it.
	receive(sizeBytes int) error
	// fail ends calls, now and later. Any goroutine may call it.
	fail(err error)
	close() error
}

// touched returns memory that the system has handed out page by page.
func touched(sizeBytes int64) []byte {
	b := make([]byte, sizeBytes)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// touch reads a byte of each step of a payload, and returns their sum, so that
// the compiler cannot leave them out.
func touch(payload []byte, step int) (sum uint64) {
	for i := 0; i < len(payload); i += step {
		sum += uint64(payload[i])
	}
	return sum
}

// touchAll reads every cache line of what touched has made, and notices when it
// is not that.
func touchAll(payload []byte) error {
	sum := touch(payload, cacheLine)
	if want := touchedSum(len(payload)); sum != want {
		return fmt.Errorf("a payload of %d bytes arrived as something else: its lines add up to %d and not to %d", len(payload), sum, want)
	}
	return nil
}

// read reads a payload: every byte of it, or a byte of each cache line.
func (s peerSpec) read(payload []byte) error {
	if s.Whole {
		return readAll(payload)
	}
	return touchAll(payload)
}

// readAll is touchAll for every byte.
func readAll(payload []byte) error {
	const one = 1
	if got, want := bytes.Count(payload, []byte{one}), (len(payload)+256-1-one)/256; got != want {
		return fmt.Errorf("a payload of %d bytes arrived as something else: %d of them are %d, and not %d", len(payload), got, one, want)
	}
	return nil
}

// touchedSum is what touch returns for what touched has made.
func touchedSum(n int) uint64 {
	const period = 256 / cacheLine // lines, whose first bytes repeat
	lines := uint64(n+cacheLine-1) / cacheLine
	var sum uint64
	for i := range uint64(period) {
		sum += i * cacheLine * ((lines + period - 1 - i) / period)
	}
	return sum
}

// A carried is the side of a race that has a carrier and a peer.
type carried struct {
	carrier carrier
	peer    *peer
	pattern pattern
	source  []byte
	pinned  bool
}

func (c *carried) run(_ context.Context, n int) (time.Duration, error) {
	if c.pinned {
		unpin, err := pin(0)
		if err != nil {
			return 0, err
		}
		defer unpin()
	}
	start := time.Now()
	for range n {
		for range c.pattern.Every {
			if err := c.carrier.send(c.source); err != nil {
				return 0, c.peer.explain(err)
			}
		}
		if err := c.carrier.receive(c.pattern.Answer); err != nil {
			return 0, c.peer.explain(err)
		}
	}
	return time.Since(start), nil
}

func (c *carried) close(context.Context) error {
	return errors.Join(c.peer.close(), c.carrier.close())
}

// answerAll is the peer's part.
func answerAll(c carrier, p pattern) error {
	answer := touched(int64(p.Answer))
	for {
		for range p.Every {
			if err := c.receive(p.Size); err != nil {
				return err
			}
		}
		if err := c.send(answer); err != nil {
			return err
		}
	}
}

// A socketCarrier copies payloads through a Unix socket.
type socketCarrier struct {
	conn   net.Conn
	buffer []byte
	// piece bounds what is written at once. A socket that keeps message bounds
	// takes no more than its buffer.
	piece int
}

// packetBytes is the most that goes into one message of a socket.
const packetBytes = 64 * kib

func newSocketCarrier(conn net.Conn, p pattern) *socketCarrier {
	s := &socketCarrier{conn: conn, buffer: touched(int64(max(p.Size, p.Answer))), piece: packetBytes}
	if conn.LocalAddr().Network() == string(byStream) {
		s.piece = len(s.buffer)
	}
	return s
}

func (s *socketCarrier) send(payload []byte) error {
	for len(payload) > 0 {
		n, err := s.conn.Write(payload[:min(len(payload), s.piece)])
		if err != nil {
			return err
		}
		payload = payload[n:]
	}
	return nil
}

func (s *socketCarrier) receive(sizeBytes int) error {
	payload := s.buffer[:sizeBytes]
	if _, err := io.ReadFull(s.conn, payload); err != nil {
		return err
	}
	return touchAll(payload)
}

func (s *socketCarrier) fail(error) { _ = s.conn.Close() }

func (s *socketCarrier) close() error {
	if err := s.conn.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil // it failed before
}
