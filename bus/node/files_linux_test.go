package node_test

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

func init() {
	// The role hosts a stage whose results go to callers. It logs to a file next to its socket.
	roles["host of results"] = func() {
		file, err := os.Create(os.Getenv(node.EnvSocket) + ".log")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return
		}
		hosting(resultsOf("a"), bus.Options{
			Logger: slog.New(slog.NewTextHandler(file, nil)), ExchangeStore: exchangeStore,
			Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared},
		})()
	}
}

// resultsOf is a pipeline of one stage, whose results go to callers.
func resultsOf(stage string) bus.Pipeline {
	return bus.Pipeline{Stages: []bus.StageSpec{{Name: stage, Remote: &bus.Remote{}}}, Edges: []bus.Edge{{From: stage}}}
}

// filesOf is how many descriptors a process has open.
func filesOf(t *testing.T, pid int) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(files)
}

// submitRequest has the caller submit another request, and returns the stage's task for it.
func (v *viewing) submitRequest(caller *thinClient, n uint32) (task uint32) {
	caller.t.Helper()
	caller.send(&wire.Submit{Source: ownSource(n)})
	caller.send(inMessage(n, ownSource(n), "go"))
	d := v.producer.await(wire.KindDeliver).(*wire.Deliver) //nolint:forcetypeassert // it is of that kind
	v.producer.send(&wire.Finish{Delivery: d.Delivery})
	return d.Source
}

// emitAlone has the stage emit a payload in its own segment, and returns the message for the
// caller: a delivery, or the end of the request.
func (v *viewing) emitAlone(caller *thinClient, task uint32) wire.Message {
	caller.t.Helper()
	v.put++
	own, _ := newOffer(caller.t, viewedBytes, viewedBytes)
	v.producer.offer(own, 1+v.put)
	own.Close()
	v.producer.send(&wire.Put{Put: v.put, Source: task, Edge: wire.AllEdges, Flags: wire.FlagOwn, Codec: uint32(codec.IDRaw), Segment: 1 + v.put, Size: viewedBytes})
	v.producer.handled() // its connection is still open
	for {
		h, body, fds, err := caller.in.Next()
		if err != nil {
			caller.t.Fatal(err)
		}
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		m, err := wire.Parse(h, body)
		if err != nil {
			caller.t.Fatal(err)
		}
		switch m := m.(type) {
		case *wire.Deliver, *wire.Over:
			return m
		case *wire.Refuse:
			caller.t.Fatalf("%+v", m)
		}
	}
}

// TestKeptViewsTakeNoDescriptorsOfOthers: a process keeps views of more payloads than the host has
// descriptors for. Its requests fail with an error that names the process, until it releases views.
// The producer's connection stays, and another process gets its results.
func TestKeptViewsTakeNoDescriptorsOfOthers(t *testing.T) {
	h, host := hostAloneAs(t, "host of results")
	v := &viewing{hosted: h, producer: dialThin(t, h.path), caller: dialThin(t, h.path)}
	v.producer.send(&wire.Serve{Token: 1, Stage: "a"})
	v.producer.await(wire.KindServing)
	other := dialThin(t, h.path)
	other.await(wire.KindWelcome)
	const more = 100
	pid := host.Process.Pid
	most := filesOf(t, pid) + more
	withLimit(t, pid, unix.RLIMIT_NOFILE, uint64(most), func() {
		var kept []uint32
		failed := func(task uint32) *wire.Over {
			for range 2 * more {
				m := v.emitAlone(v.caller, task)
				if over, is := m.(*wire.Over); is {
					return over
				}
				id := m.(*wire.Deliver).Delivery //nolint:forcetypeassert // the only other kind
				v.caller.send(&wire.Finish{Delivery: id, Flags: wire.FinishKeep})
				v.caller.handled()
				kept = append(kept, id)
			}
			t.Fatalf("%d payloads are kept, and no request fails", len(kept))
			return nil
		}
		over := failed(v.submitRequest(v.caller, 1))
		for _, want := range []string{
			fmt.Sprintf("keeps views of payloads in %d segments of their own", len(kept)), fmt.Sprintf("the host, process %d", pid),
			fmt.Sprintf("of the %d that it may have open", most), "ulimit -n, or LimitNOFILE=",
		} {
			if over.Outcome != wire.OutcomeFailed || !strings.Contains(over.Text, want) {
				t.Errorf("the request ended with %v: %s; want it to fail with %q", over.Outcome, over.Text, want)
			}
		}
		n := len(kept)
		for request := range uint32(3) {
			if failed(v.submitRequest(v.caller, 2+request)); len(kept) != n {
				t.Errorf("%d payloads more are kept", len(kept)-n)
			}
		}
		task := v.submitRequest(other, 1)
		for range 3 * 4 { // more than one window
			m, is := v.emitAlone(other, task).(*wire.Deliver)
			if !is {
				t.Fatal("a process that keeps no views gets nothing")
			}
			other.send(&wire.Finish{Delivery: m.Delivery})
			other.handled()
		}
		for _, id := range kept {
			v.caller.send(&wire.Release{Delivery: id})
		}
		kept = nil
		if failed(v.submitRequest(v.caller, 9)); len(kept) != n {
			t.Errorf("%d payloads are kept after all were released, want %d", len(kept), n)
		}
	})
	log, err := os.ReadFile(h.path + ".log")
	if n := strings.Count(string(log), "is given no large payloads"); err != nil || n != 1 {
		t.Errorf("the log has the warning %d times, %v:\n%s", n, err, log)
	}
}
