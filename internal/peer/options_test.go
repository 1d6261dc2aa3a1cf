package peer_test

import (
	"errors"
	"io/fs"
	"runtime"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

func TestOptions(t *testing.T) {
	type options interface{ Validate() error }
	tests := []struct {
		name string
		give options
		ok   bool
	}{
		{name: "sender, zero", give: peer.SenderOptions{}, ok: true},
		{name: "sender, all", give: peer.SenderOptions{BacklogBytes: wire.MaxPacket, FlushTimeout: time.Second}, ok: true},
		{name: "sender, no room for a packet", give: peer.SenderOptions{BacklogBytes: wire.MaxPacket - 1}},
		{name: "sender, timeout in the past", give: peer.SenderOptions{FlushTimeout: -1}},
		{name: "listen, zero", give: peer.ListenOptions{}, ok: true},
		{name: "listen, mode that is no permission", give: peer.ListenOptions{Mode: fs.ModeDir | 0o600}},
		{name: "listen, backlog", give: peer.ListenOptions{Backlog: -1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.give.Validate(); (err == nil) != tt.ok {
				t.Errorf("Validate: %v, want ok %v", err, tt.ok)
			}
		})
	}
}

// TestUnsupported checks that other systems return ErrUnsupported.
func TestUnsupported(t *testing.T) {
	a, b, err := peer.Pair()
	if runtime.GOOS != "linux" {
		if !errors.Is(err, peer.ErrUnsupported) {
			t.Errorf("Pair: %v, want ErrUnsupported", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Error(err)
	}
}
