package node

import (
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/accounts"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestUnsendablePutsLeaveNoOffers: when the message of a payload cannot be sent, the segment that
// was offered for it is forgotten by the host, so that any number of such puts may fail.
func TestUnsendablePutsLeaveNoOffers(t *testing.T) {
	payload := make([]byte, 64<<10)
	key := strings.Repeat("k", 1<<10)
	for name, send := range map[string]func(*link) error{
		"put": func(l *link) error {
			d := new(bus.Delivery)
			d.Inline, d.Key = payload, key
			return l.put(1, d, 0, func() {})
		},
		"place": func(l *link) error {
			p, err := accounts.Copied(payload)
			if err != nil {
				return err
			}
			defer p.Release()
			return l.sendPlace(&wire.Place{Key: key}, p)
		},
	} {
		t.Run(name, func(t *testing.T) {
			a := attach(t, 4, func(*bus.Task, *bus.Delivery) error { return nil })
			for range 4096 + 1 { // which is as much as a client may offer
				if err := send(a.link); err == nil {
					t.Fatal("it was sent")
				}
			}
			if _, err := a.node.Call(testbus.Soon(t), "status", nil); err != nil {
				t.Fatal(err)
			}
			for _, p := range a.server.Processes() {
				if p.Arena.Bytes != 0 {
					t.Errorf("the host keeps %d bytes of memory that was offered", p.Arena.Bytes)
				}
			}
		})
	}
}
