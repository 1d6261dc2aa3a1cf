package chaos

import (
	"context"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestDeathWithWaitingOutput kills a process while its emission waits, at the host,
// for a permit of the next stage. The emission was not sent, so another process
// has to do the work again.
func TestDeathWithWaitingOutput(t *testing.T) {
	for _, tc := range []struct {
		name string
		role role
	}{
		{"Go", role{name: "first", stage: "a", env: []string{roleEnv + "=stage"}}},
		{"Python", role{name: "first", stage: "a", python: "stage.py"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := exec.LookPath("python3"); err != nil && tc.role.python != "" {
				t.Skip("there is no Python")
			}
			testDeathWithWaitingOutput(t, tc.role)
		})
	}
}

func testDeathWithWaitingOutput(t *testing.T, r role) {
	var log tail
	release := make(chan struct{})
	occupied := make(chan struct{})
	var once bool
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "a", Remote: &bus.Remote{}, State: bus.StateNone, Attempts: 2},
			{Name: "next", MaxInflight: 1, Handle: func(task *bus.Task, d *bus.Delivery) error {
				if !once { // the first request takes the only permit
					once = true
					close(occupied)
					<-release
				}
				return task.Forward(d)
			}},
		},
		Edges: []bus.Edge{{From: "a", To: "next"}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 16 << 20, Memory: shmstore.Shared}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	s, err := host.Listen(b, filepath.Join(t.TempDir(), "bus.sock"), host.ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(context.Background()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(log.String())
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()

	begin := func(fault string) *child {
		c, err := start(r, s.Addr(), fault, func(string) {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.kill(); <-c.done })
		return c
	}
	first := submitOne(ctx, t, b, 1)
	victim := begin("")
	<-occupied
	second := submitOne(ctx, t, b, 2)
	for ; !waitsAt(b, "a->next"); time.Sleep(pollPause) { // in another process
		if ctx.Err() != nil {
			t.Fatalf("the output does not wait\n%s", victim.stderr.String())
		}
	}
	victim.kill()
	<-victim.done
	begin("")
	for ; s.Serving("a") != 1 || s.Processes()[0].PID == victim.pid(); time.Sleep(pollPause) {
		if ctx.Err() != nil {
			t.Fatal("no process serves the stage")
		}
	}
	close(release)
	for i, req := range []*bus.Request{first, second} {
		d, err := req.Recv(ctx)
		if err != nil {
			t.Errorf("request %d ended with: %v", i+1, err)
			continue
		}
		if _, err := verify(d.Bytes(), levelA, 0); err != nil {
			t.Errorf("request %d: %v", i+1, err)
		}
		if err := d.Finish(nil); err != nil {
			t.Error(err)
		}
		if _, err := req.Recv(ctx); err == nil || req.Outcome() != bus.Completed {
			t.Errorf("request %d: %v, %v", i+1, req.Outcome(), err)
		}
		req.Close()
	}
}

// waitsAt reports whether a producer waits at an edge.
func waitsAt(b *bus.Bus, edge string) bool {
	for _, s := range b.Stalls(0) {
		if s.Edge == edge {
			return true
		}
	}
	return false
}

// submitOne sends a request with one small input and a small result.
func submitOne(ctx context.Context, t *testing.T, b *bus.Bus, n int) *bus.Request {
	t.Helper()
	r, err := b.Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	tag := smallTag(n)
	if err := r.Input(ctx).EmitBytes(payload(tag, levelInput, 0), bus.Last()); err != nil {
		t.Fatal(err)
	}
	return r
}

// smallTag names a request whose first payloads travel in messages.
func smallTag(n int) uint32 {
	tag := uint32(n)
	for len(payload(tag, levelInput, 0)) > 200 || len(payload(tag, levelA, 0)) > 200 {
		tag += 16
	}
	return tag
}
