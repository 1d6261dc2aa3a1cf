package node_test

import (
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/cudaipc/lane"
)

// TestDirectoryWithPython: Go finds descriptors that Python publishes, and Python finds those of
// Go. Both notice the death of the publisher.
func TestDirectoryWithPython(t *testing.T) {
	h := exchangeHost(t, bus.Options{})
	p := h.pythonAs(t, "testdata/directory.py")
	d := h.join(t, node.JoinOptions{}).Directory()
	of := func(number uint32) args {
		return args{"pool": fmt.Sprintf("%x", named(number).Pool), "number": number}
	}
	with := func(a args, key string, value any) args { a[key] = value; return a }

	p.do("publish", with(with(of(1), "text", "from Python"), "size", 1<<40), nil)
	p.do("publish", with(with(of(1), "text", "again"), "size", 1), "Taken")
	found := mustFind(t, d, named(1))
	here := mustFind(t, h.bus.Directory(), named(1))
	for _, f := range []lane.Found{found, here} {
		text := make([]byte, 20)
		n, err := unix.Pread(f.FD, text, 0)
		if err != nil || string(text[:n]) != "from Python" || f.SizeBytes != 1<<40 || !isAlive(f.Owner) {
			t.Errorf("found %q of %d bytes, %v", text[:n], f.SizeBytes, err)
		}
	}
	p.do("find", of(2), "Nothing")
	f := someFile(t)
	if _, err := f.WriteString("from Go"); err != nil {
		t.Fatal(err)
	}
	mustPublish(t, d, named(2), f, 5)
	p.do("find", of(2), []any{"from Go", 5, os.Getpid(), false})
	mustPublish(t, h.bus.Directory(), named(3), f, 6)
	p.do("find", of(3), []any{"from Go", 6, os.Getpid(), false})
	p.do("withdraw", of(2), nil) // not published by the Python process
	mustFind(t, d, named(2))
	p.do("withdraw", of(1), nil)
	p.do("find", of(1), "Nothing") // sent after the withdrawal
	wantNotPublished(t, d, named(1))

	other := h.childAs(t, "publisher", "")
	awaitFound(t, d, named(1))
	p.do("find", of(1), []any{"", 11, other.Process.Pid, false})
	kill(t, other)
	p.do("wait", of(1), true)
	p.do("find", of(1), "Nothing")
	p.Kill()
	<-found.Owner.Done()
	<-here.Owner.Done()
}
