package wire_test

import (
	"encoding/hex"
	"errors"
	"math"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// FuzzNext reads packets from outside to their end. Decoded messages must encode, and decode to
// the same.
func FuzzNext(f *testing.F) {
	var packet []byte
	for _, s := range samples() {
		b, err := wire.Append(packet, s.message, s.descriptors)
		if err != nil {
			f.Fatal(err)
		}
		const seedBytes = 500 // the fuzzer is slow with long ones
		if len(b) > seedBytes && len(packet) > 0 {
			f.Add(packet)
			packet = nil
		} else if len(b) <= seedBytes {
			packet = b
		}
	}
	f.Add(packet)
	for _, s := range skippedSamples(f) {
		b, err := hex.DecodeString(s.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		for len(packet) > 0 {
			h, body, rest, err := wire.Next(packet)
			if err != nil {
				mustBeProtocol(t, err)
				return
			}
			if len(rest) >= len(packet) {
				t.Fatalf("Next took nothing of %d bytes", len(packet))
			}
			if packet = rest; !h.Skip {
				checkParse(t, h, body)
			} else if h.Kind.Known() {
				t.Fatalf("%v is skipped", h.Kind)
			}
		}
	})
}

// FuzzParse reads the fields of every kind from any bytes.
func FuzzParse(f *testing.F) {
	messages := examples(0)
	for _, s := range samples() {
		messages = append(messages, s.message)
	}
	for _, m := range messages {
		b, err := wire.Append(nil, m, m.Kind().Descriptors())
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 1000 {
			f.Add(uint16(m.Kind()), b[wire.HeaderSize:])
		}
	}
	f.Fuzz(func(t *testing.T, kind uint16, body []byte) {
		checkParse(t, wire.Header{Kind: wire.Kind(kind)}, body)
	})
}

// checkParse parses a message. If that succeeds, its encoding must parse to the same.
func checkParse(t *testing.T, h wire.Header, body []byte) {
	m, err := wire.Parse(h, body)
	if err != nil {
		mustBeProtocol(t, err)
		return
	}
	least := h.Kind.Descriptors()
	b, err := wire.Append(nil, m, least)
	if err != nil {
		if len(body) > wire.MaxPacket-wire.HeaderSize {
			return // FuzzParse made a message that no packet holds
		}
		t.Fatalf("%+v was read and cannot be written: %v", m, err)
	}
	if len(b) > wire.HeaderSize+len(body) {
		t.Fatalf("%d bytes were read from %d", len(b)-wire.HeaderSize, len(body))
	}
	again, err := wire.Parse(h, b[wire.HeaderSize:])
	if err != nil {
		t.Fatalf("%+v cannot be read again: %v", m, err)
	}
	if diff := cmp.Diff(m, again, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("read again (-first +second):\n%s", diff)
	}
}

func mustBeProtocol(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, wire.ErrProtocol) {
		t.Fatalf("%v is not ErrProtocol", err)
	}
}

// TestParseAllocatesLittle reads counts that exceed the bytes of their message, and measures the
// allocations.
func TestParseAllocatesLittle(t *testing.T) {
	const bound = 4 << 10 // an error and its text
	for _, s := range malformedSamples(t) {
		least := uint64(math.MaxUint64) // allocations of the rest of the process count as well
		for range 3 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := readAll(s.packet)
			runtime.ReadMemStats(&after)
			if err == nil {
				t.Errorf("%s: accepted", s.name)
			}
			least = min(least, after.TotalAlloc-before.TotalAlloc)
		}
		if least > bound+4*uint64(len(s.packet)) {
			t.Errorf("%s: %d bytes allocated for a packet of %d", s.name, least, len(s.packet))
		}
	}
}
