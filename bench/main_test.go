package bench

import (
	"context"
	"fmt"
	"os"
	"testing"
)

// testPeer makes the test binary a peer.
var testPeer = []string{os.Args[0], "peer"}

func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == testPeer[1] {
		if err := Peer(context.Background(), os.Args[2], os.Stdin); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// The race detector has each process wait for a second before it ends.
	_ = os.Setenv("GORACE", os.Getenv("GORACE")+" atexit_sleep_ms=0")
	os.Exit(m.Run())
}
