package connectortest_test

import (
	"errors"
	"io"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/connectortest"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// serveRelay serves a transport over two pipes, and returns its relay.
func serveRelay(t *testing.T, transport connector.Transport) *connectortest.Relay {
	t.Helper()
	in, toServer := io.Pipe()
	fromServer, out := io.Pipe()
	served := make(chan error)
	go func() {
		err := connectortest.Serve(in, out, transport)
		served <- errors.Join(err, out.Close())
	}()
	relay := connectortest.NewRelay(fromServer, toServer)
	t.Cleanup(func() {
		if err := toServer.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		_, err := relay.Get(t.Context(), connector.Edge{From: "a", To: "b"}, "key", nil)
		if !errors.Is(err, connectortest.ErrGone) {
			t.Errorf("a call after the other side has ended: %v", err)
		}
	})
	return relay
}

func TestRelay(t *testing.T) {
	connectortest.Run(t, connectortest.Ends{MetadataUnique: true, Open: func(t *testing.T) (put, get connector.Transport) {
		r, err := ring.New(ring.Options{Store: shmstore.Options{Memory: shmstore.Heap}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
		return serveRelay(t, r.End()), serveRelay(t, r.End())
	}})
}
