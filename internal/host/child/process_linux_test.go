package child

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func init() {
	roles["host"] = func(args []string) {
		m := New(Options{Out: os.Stdout})
		_, err := m.Start(Spec{Name: "held", Args: []string{os.Args[0], args[0]}, Env: []string{roleVariable + "=hold"}})
		if err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		select {}
	}
}

// Children do not survive a host that is killed.
func TestChildrenDieWithTheHost(t *testing.T) {
	h := newHolder(t)
	s := play(t, "host", h.path)
	host := exec.Command(s.Args[0], s.Args[1:]...)
	host.Env = append(os.Environ(), s.Env...)
	said := &tape{changed: make(chan struct{})}
	host.Stdout, host.Stderr = said, said
	if err := host.Start(); err != nil {
		t.Fatal(err)
	}
	said.wait(t, "held | up\n")
	h.lives()
	if !h.held() {
		t.Error("the child is dead before the host; this test shows nothing")
	}
	_ = host.Process.Kill()
	h.dies()
	_ = host.Wait()
}

// A process does not die with a thread, neither that of the caller of Start nor any other thread of the
// runtime.
func TestChildrenSurviveThreads(t *testing.T) {
	r := newRig(t)
	spec := play(t, "idle")
	var c *Child
	var err error
	endThreads(t, func() { c, err = r.Start(spec) })
	if err != nil {
		t.Fatal(err)
	}
	r.tape.wait(t, "up\n")
	if err := c.Stop(context.Background()); err != nil {
		t.Error(err)
	}
	if got := c.Status().LastExit.Cause(); got != "stopped (exit status 0)" {
		t.Errorf("the child ended by %s", got)
	}
}

// endThreads calls f on a thread, and ends that thread and all idle ones: it locks more goroutines to
// threads than there are idle threads, and a thread ends with a goroutine that is locked to it.
func endThreads(t *testing.T, f func()) {
	t.Helper()
	const n = 64
	var ready, over sync.WaitGroup
	ready.Add(n)
	threads := make([]int, n)
	for i := range n {
		over.Go(func() {
			runtime.LockOSThread()
			threads[i] = unix.Gettid()
			if i == 0 {
				f()
			}
			ready.Done()
			ready.Wait() // so that each has a thread of its own
			if threads[i] == os.Getpid() {
				runtime.UnlockOSThread() // the main thread does not end
			}
		})
	}
	over.Wait()
	deadline := time.Now().Add(patience)
	for _, id := range threads {
		for id != os.Getpid() && unix.Tgkill(os.Getpid(), id, 0) == nil {
			if time.Now().After(deadline) {
				t.Fatalf("thread %d does not end; this test shows nothing", id)
			}
			runtime.Gosched()
		}
	}
}
