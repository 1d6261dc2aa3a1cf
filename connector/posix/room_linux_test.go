package posix_test

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/connector"
)

// TestRoomIsUsedAgain: a value is put where one was that a reader has got and released, though
// others stay, and though there is room elsewhere.
func TestRoomIsUsedAgain(t *testing.T) {
	opts := fresh(t)
	creator, reader := open(t, opts.options()), open(t, opts.options())
	put(t, creator, "stays", []byte("for long"))
	places := make(map[*byte]bool)
	for n := range 20 {
		key := fmt.Sprint(n)
		meta, err := creator.Put(t.Context(), edge, key, 10_000, func(dst []byte) error {
			places[&dst[0]] = true
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		got, err := reader.Get(t.Context(), edge, key, meta)
		if err != nil {
			t.Fatal(err)
		}
		got.Release()
	}
	if len(places) > 1 {
		t.Errorf("one value after the other lay in %d places", len(places))
	}
}

// TestRoomIsTold: a put that waits is told when a reader has released what it got, and
// does not find out with the next look.
func TestRoomIsTold(t *testing.T) {
	opts := fresh(t)
	blind := opts.options()
	blind.LookEvery = time.Hour
	creator, getter := open(t, blind), open(t, opts.options())
	value := content(1, 500_000)
	for i := range 10 {
		var held []connector.Payload
		for j := range 2 {
			key := fmt.Sprint(i, j)
			put(t, creator, key, value)
			held = append(held, hold(t, getter, key, nil, value))
		}
		done := make(chan error, 1)
		go func() {
			_, err := tryPut(t.Context(), creator, "waits", value)
			done <- err
		}()
		const wantRoomAt = 64
		for uint32(opts.number(t, ".directory", wantRoomAt))%2 == 0 {
			runtime.Gosched() // until it waits
		}
		for _, p := range held {
			p.Release()
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		wantValue(t, getter, "waits", nil, value)
	}
}

// TestRoomIsWaitedFor: a put waits until readers have released what they got, and says
// what to do when nobody does.
func TestRoomIsWaitedFor(t *testing.T) {
	opts := fresh(t)
	limited := opts.options()
	limited.Timeout = 20 * time.Millisecond
	creator, getter := open(t, limited), open(t, opts.options())
	var held []connector.Payload
	for i := range 2 {
		value := content(byte(i), 500_000)
		held = append(held, hold(t, getter, "key", put(t, creator, "key", value), value))
	}
	_, err := tryPut(t.Context(), creator, "key", content(3, 500_000))
	wantErr(t, "put without room", err, connector.ErrFull)
	for i, p := range held {
		wantBytes(t, p, content(byte(i), 500_000)) // whoever is short of room takes it from nobody
	}
	for _, p := range held {
		p.Release()
	}
	wantAllRoom(t, creator)
	_, err = tryPut(t.Context(), creator, "key", content(3, 600_000))
	wantErr(t, "put of more than half", err, connector.ErrTooLarge)
	if err == nil || !strings.Contains(err.Error(), "raise ring_bytes to 12") {
		t.Errorf("it does not say what to do: %v", err)
	}
}

// TestSwept: what nobody comes for goes in its time.
func TestSwept(t *testing.T) {
	opts := fresh(t)
	limited := opts.options()
	limited.TTL = 5 * time.Millisecond
	creator, getter := open(t, limited), open(t, opts.options())
	meta := put(t, creator, "key", old)
	peeker := getter.(connector.Peeker)
	for {
		payload, err := peeker.Peek(t.Context(), edge, "key", meta)
		if errors.Is(err, connector.ErrNotFound) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		payload.Release()
	}
	wantNone(t, creator, "key", nil)
	wantAllRoom(t, creator)
}

// TestNoMemory: what /dev/shm has no room for is an error, and leaves nothing.
func TestNoMemory(t *testing.T) {
	opts := fresh(t)
	opts.Bytes = 1 << 45
	end := open(t, opts.options())
	_, err := tryPut(t.Context(), end, "key", old)
	wantErr(t, "put", err, connector.ErrFull)
	wantEmpty(t, opts)
}
