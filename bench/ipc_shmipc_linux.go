package bench

import (
	"io"
	"net"
	"path/filepath"

	"github.com/cloudwego/shmipc-go"
)

// A shmipcCarrier is a stream of shmipc-go, another way to share memory from Go.
// It is set up as its documentation advises for the size of the payloads: each
// fits one slice, and there are as many as are in flight.
type shmipcCarrier struct {
	manager *shmipc.SessionManager // of the end that calls
	session *shmipc.Session
	stream  *shmipc.Stream
}

// shmipcSilence is the log level above all others.
const shmipcSilence = 5

func shmipcConfig(p pattern) *shmipc.Config {
	shmipc.SetLogLevel(shmipcSilence) // it logs to standard output
	const (
		header  = 20 // of a slice
		leastMB = 32 // the default
		whole   = 100
	)
	size := max(p.Size, 8*kib-header)
	slices := p.Every + 2
	c := shmipc.DefaultConfig()
	c.LogOutput = io.Discard
	c.MemMapType = shmipc.MemMapTypeMemFd
	c.ShareMemoryBufferCap = uint32(max(slices*(size+header)+mib, leastMB*mib))
	c.BufferSliceSizes = []*shmipc.SizePercentPair{{Size: uint32(size), Percent: whole}}
	return c
}

// acceptShmipc waits for the peer to call.
func acceptShmipc(conn net.Conn, p pattern) (*shmipcCarrier, error) {
	session, err := shmipc.Server(conn, shmipcConfig(p))
	if err != nil {
		return nil, err
	}
	c := &shmipcCarrier{session: session}
	// A stream exists when something has come through it.
	if c.stream, err = session.AcceptStream(); err == nil {
		err = c.receive(acknowledgement)
	}
	return c, err
}

// callShmipc calls the parent.
func callShmipc(path string, p pattern) (*shmipcCarrier, error) {
	c := shmipc.DefaultSessionManagerConfig()
	c.Config, c.Network, c.Address = shmipcConfig(p), "unix", path
	c.ShareMemoryPathPrefix = filepath.Join(filepath.Dir(path), "shm")
	m, err := shmipc.NewSessionManager(c)
	if err != nil {
		return nil, err
	}
	s, err := m.GetStream()
	if err != nil {
		return nil, err
	}
	carrier := &shmipcCarrier{manager: m, stream: s}
	err = carrier.send(touched(acknowledgement))
	return carrier, err
}

func (c *shmipcCarrier) send(payload []byte) error {
	if _, err := c.stream.BufferWriter().WriteBytes(payload); err != nil {
		return err
	}
	return c.stream.Flush(false)
}

func (c *shmipcCarrier) receive(sizeBytes int) error {
	reader := c.stream.BufferReader()
	payload, err := reader.ReadBytes(sizeBytes)
	if err != nil {
		return err
	}
	err = touchAll(payload)
	reader.ReleasePreviousRead()
	return err
}

func (c *shmipcCarrier) fail(error) { _ = c.stream.Close() }

func (c *shmipcCarrier) close() error {
	if c.manager != nil {
		return c.manager.Close()
	}
	return c.session.Close()
}
