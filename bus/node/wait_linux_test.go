package node_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
)

// TestWait: streams arrive complete in each wait mode. A node that parks never polls, and a node
// that polls keeps polling while no message comes and a goroutine waits.
func TestWait(t *testing.T) {
	for _, wait := range bus.Waits() {
		t.Run(string(wait), func(t *testing.T) {
			opts := node.JoinOptions{Wait: wait}
			h := listen(t, testbus.Remotes(testbus.Linear(forwarding("a"))), bus.Options{})
			server := h.join(t, opts)
			go func() { _ = server.Serve(context.Background(), forwarding("a")) }() // ends with the node
			caller := h.join(t, opts)
			for range 5 {
				streamBlocks(t, caller, 500, 100)
			}
			r := testbus.StreamOf(t, caller)
			defer r.Close()
			go func() { _, _ = r.Recv(t.Context()) }() // waits, until the request is closed
			for name, n := range map[string]*node.Node{"server": server, "caller": caller} {
				looks := node.Polls(n)
				switch wait {
				case bus.WaitPark:
					if looks != 0 {
						t.Errorf("the %s, which parks, has looked %d times", name, looks)
					}
				case bus.WaitPoll:
					testbus.Await(t, func() bool { return node.Polls(n) > looks+10 })
				case bus.WaitBalanced:
				}
			}
		})
	}
}

// TestWaitOfAHost: a host that waits for its own requests polls, and so does the node that serves
// them; neither polls for requests of a node, which the host wakes.
func TestWaitOfAHost(t *testing.T) {
	for _, wait := range bus.Waits() {
		t.Run(string(wait), func(t *testing.T) {
			h := listen(t, testbus.Remotes(testbus.Linear(forwarding("a"))), bus.Options{Wait: wait})
			server := h.join(t, node.JoinOptions{Wait: bus.WaitBalanced})
			go func() { _ = server.Serve(context.Background(), forwarding("a")) }() // ends with the node
			caller := h.join(t, node.JoinOptions{})
			for range 20 {
				streamBlocks(t, caller, 1, 100)
			}
			if ofHost, ofNode := testbus.Polls(t, h.bus), node.Polls(server); ofHost != 0 || ofNode != 0 {
				t.Errorf("the host has looked %d times and the node %d times for requests of a node", ofHost, ofNode)
			}
			for range 20 {
				streamBlocks(t, h.bus, 1, 100)
			}
			hostLooks := func() bool { return testbus.Polls(t, h.bus) > 0 }
			testbus.Await(t, func() bool { // on busy cores a result may come before a goroutine waits for it: then none polls
				streamBlocks(t, h.bus, 1, 100)
				return node.Polls(server) > 0 && (hostLooks() || wait == bus.WaitPark)
			})
			if wait == bus.WaitPark && hostLooks() {
				t.Errorf("the host, which parks, has looked %d times", testbus.Polls(t, h.bus))
			}
			if wait == bus.WaitPoll {
				r := testbus.StreamOf(t, h.bus)
				defer r.Close()
				go func() { _, _ = r.Recv(t.Context()) }() // waits, until the request is closed
				looks := testbus.Polls(t, h.bus)
				testbus.Await(t, func() bool { return testbus.Polls(t, h.bus) > looks+10 })
			}
		})
	}
}

// TestUnknownWaitIsRefused: the environment gives the wait mode if the options do not, and an
// unknown mode is refused by name.
func TestUnknownWaitIsRefused(t *testing.T) {
	h := listen(t, testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{})
	t.Setenv(bus.EnvWait, "nap")
	_, err := node.Join(t.Context(), "unknown", node.JoinOptions{Socket: h.path})
	if !errors.Is(err, bus.ErrConfig) || !strings.Contains(err.Error(), `"nap": use one of [park balanced poll]`) {
		t.Errorf("error %v, want one that names it", err)
	}
	if _, err := bus.Open(t.Context(), testbus.Linear(bus.Stage("a", testbus.Upper)), bus.Options{}); !errors.Is(err, bus.ErrConfig) {
		t.Errorf("a bus opens with %v, want ErrConfig", err)
	}
	h.join(t, node.JoinOptions{Wait: bus.WaitPark}) // the options override the environment
	t.Setenv(bus.EnvWait, "poll")
	h.join(t, node.JoinOptions{})
}
