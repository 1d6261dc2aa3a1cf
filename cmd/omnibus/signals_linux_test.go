package main

import (
	"os"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestEchoOfASignal: timeout(1) sends its signal twice, and the second one does not end
// what the first one has end in order.
func TestEchoOfASignal(t *testing.T) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ctx, stop := endedBySignal(t.Context(), time.Hour, syscall.SIGTERM)
	defer stop()
	for range 2 {
		if err := unix.Tgkill(os.Getpid(), unix.Gettid(), unix.SIGTERM); err != nil { // which is here when it returns
			t.Fatal(err)
		}
		<-ctx.Done()
	}
}
