package bridge

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
)

// freePort returns a port of the loopback interface without a listener.
func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // of TCP
}

// sides opens a receiver, and returns it with a function that opens its sender and the sender's
// address.
func sides(t *testing.T, engine string, more map[string]any) (receiver *transport, sender func() *transport, address string) {
	t.Helper()
	s := shared(t, engine)
	port := freePort(t)
	receiver = s.open(t, engine, map[string]any{"role": "receiver", "sender_host": "127.0.0.1", "sender_zmq_port": port, "timeout": 1})
	return receiver, func() *transport {
		all := map[string]any{"zmq_port": port}
		for key, value := range more {
			all[key] = value
		}
		return s.open(t, engine, all)
	}, fmt.Sprintf("127.0.0.1:%d", port)
}

func awaits(ctx context.Context, end *transport, key string) (string, error) {
	got, err := end.Await(ctx, edge, key, nil)
	if err != nil {
		return "", err
	}
	defer got.Release()
	return string(got.Bytes()), nil
}

// TestSenderStartsLater: without metadata a get asks the sender in the settings, and the error for
// a missing sender has its address; Await continues until the sender is started.
func TestSenderStartsLater(t *testing.T) { eachPeer(t, testSenderStartsLater) }

func testSenderStartsLater(t *testing.T, engine string) {
	receiver, start, address := sides(t, engine, nil)
	_, err := receiver.Get(t.Context(), edge, "later", nil)
	if !errors.Is(err, connector.ErrNotFound) || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "not started") {
		t.Errorf("get from a sender that is not started: %v", err)
	}
	got := make(chan string)
	begun := make(chan struct{})
	go func() {
		close(begun)
		value, err := awaits(t.Context(), receiver, "later")
		if err != nil {
			t.Errorf("await: %v", err)
		}
		got <- value
	}()
	<-begun
	put(t, start(), "later", []byte("value"))
	if value := <-got; value != "value" {
		t.Errorf("await: %q", value)
	}
	if receiver.SharesKeys() != (engine == nixl) {
		t.Error("it is not said whether two edges share a key")
	}
}

// TestSenderDies: a get from a stopped sender ends after timeout, and one from a dead sender at
// once, both with its address; the error for a lost value names it.
func TestSenderDies(t *testing.T) { eachPeer(t, testSenderDies) }

func testSenderDies(t *testing.T, engine string) {
	receiver, start, address := sides(t, engine, nil)
	sender := start()
	put(t, sender, "stopped", []byte("value"))
	meta := lastMeta["stopped"]
	old := bridge(t, sender)
	resume := stop(t, sender)
	_, err := receiver.Get(t.Context(), edge, "stopped", meta)
	if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), address) || !strings.Contains(err.Error(), "stopped") {
		t.Errorf("get from a sender that is stopped: %v", err)
	}
	resume()
	if err := old.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for bridge(t, sender).Pid == old.Pid { // until another bridge is started, at the same port
		runtime.Gosched()
	}
	if engine == nixl { // its metadata name the value, so that Await ends
		_, err = receiver.Await(t.Context(), edge, "stopped", meta)
	} else {
		_, err = receiver.Get(t.Context(), edge, "stopped", meta)
	}
	if !errors.Is(err, connector.ErrNotFound) || engine == nixl && !strings.Contains(err.Error(), address) {
		t.Errorf("await of a value that was lost with its sender: %v", err)
	}
	put(t, sender, "again", []byte("value"))
	if value, err := awaits(t.Context(), receiver, "again"); err != nil || value != "value" {
		t.Errorf("after it was started again: %q, %v", value, err)
	}
}

// TestPeersRefused: each refusal says what to do, and leaves no value.
func TestPeersRefused(t *testing.T) { eachPeer(t, testPeersRefused) }

func testPeersRefused(t *testing.T, engine string) {
	receiver, start, address := sides(t, engine, map[string]any{"memory_pool_size": 1 << 20})
	sender := start()
	var port int
	if _, err := fmt.Sscanf(address, "127.0.0.1:%d", &port); err != nil {
		t.Fatal(err)
	}
	_, err := openEngine(t.Context(), engine, shared(t, engine).with(map[string]any{"zmq_port": port, "timeout": 3}))
	if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), address+" (host, zmq_port)") {
		t.Errorf("a port that is in use: %v", err)
	}
	_, err = receiver.Put(t.Context(), edge, "refused", 5, writes([]byte("value")))
	if !errors.Is(err, connector.ErrUnavailable) || !strings.Contains(err.Error(), "role") {
		t.Errorf("put by a receiver: %v", err)
	}
	_, err = sender.Put(t.Context(), edge, "large", 1<<20+1, func([]byte) error { return nil })
	if !errors.Is(err, connector.ErrTooLarge) || !strings.Contains(err.Error(), "memory_pool_size") {
		t.Errorf("a value above the memory: %v", err)
	}
	put(t, sender, "fills", make([]byte, 1<<20))
	_, err = sender.Put(t.Context(), edge, "full", 5, writes([]byte("value")))
	if !errors.Is(err, connector.ErrFull) || !strings.Contains(err.Error(), "memory_pool_size") {
		t.Errorf("a value without space: %v", err)
	}
	get(t, receiver, "fills", make([]byte, 1<<20))
	good := connector.Metadata{"source_host": "127.0.0.1", "source_port": 1, "data_size": 5}
	bad := map[string]any{"data_size": "x", "source_port": "x", "source_host": strings.Repeat("a", 8<<10)}
	if engine == nixl {
		good = connector.Metadata{"schema_version": 1, "generation": "g", "sender_host": "127.0.0.1", "sender_zmq_port": 1}
		bad = map[string]any{"schema_version": 2, "generation": 5, "sender_zmq_port": "x", "sender_host": strings.Repeat("a", 8<<10)}
	}
	for key, value := range bad {
		meta := maps.Clone(good)
		meta[key] = value
		if _, err := receiver.Get(t.Context(), edge, "metadata", meta); !errors.Is(err, connector.ErrMetadata) {
			t.Errorf("metadata with another %s: %v", key, err)
		}
	}
}
