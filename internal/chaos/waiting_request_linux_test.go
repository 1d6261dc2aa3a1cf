package chaos

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestWaitingRequestBlocksNoOther has one request of a stage wait for the permit
// of the next stage. Another request holds the permit, and needs the first stage
// to end. If the stage's process did not serve the other request meanwhile, both
// would wait for ever.
func TestWaitingRequestBlocksNoOther(t *testing.T) {
	for _, tc := range []struct {
		name string
		role role
	}{
		{"Go", role{name: "first", stage: "a", env: []string{roleEnv + "=stage"}}},
		{"Python", role{name: "first", stage: "a", python: "stage.py", env: []string{"OMNIBUS_CHAOS_THREADS=1"}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := exec.LookPath("python3"); err != nil && tc.role.python != "" {
				t.Skip("there is no Python")
			}
			testWaitingRequest(t, tc.role)
		})
	}
}

func testWaitingRequest(t *testing.T, r role) {
	b, err := bus.Open(t.Context(), bus.Pipeline{
		Stages: []bus.StageSpec{
			{Name: "a", Remote: &bus.Remote{}, State: bus.StateNone},
			{Name: "next", MaxInflight: 1, Handle: func(task *bus.Task, d *bus.Delivery) error { return task.Forward(d) }},
		},
		Edges: []bus.Edge{{From: "a", To: "next"}},
	}, bus.Options{Store: shmstore.Options{ArenaBytes: 16 << 20, Memory: shmstore.Shared}})
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
	}()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	c, err := start(r, s.Addr(), "", func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { c.kill(); <-c.done }()

	first, err := b.Stream(ctx) // takes the permit of next, and stays open
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	if err := first.Input(ctx).EmitBytes(payload(smallTag(1), levelInput, 0)); err != nil {
		t.Fatal(err)
	}
	d, err := first.Recv(ctx)
	if err != nil {
		t.Fatal(err)
	}
	_ = d.Finish(nil)
	second := submitOne(ctx, t, b, 2)
	defer second.Close()
	for ; !waitsAt(b, "a->next"); time.Sleep(pollPause) { // in another process
		if ctx.Err() != nil {
			t.Fatal("the second request does not wait")
		}
	}
	if err := first.CloseSend(ctx); err != nil {
		t.Fatal(err)
	}
	for i, req := range []*bus.Request{first, second} {
		for _, err := range req.Results(ctx) {
			if err != nil {
				t.Fatalf("request %d: %v; %v", i+1, err, b.Stalls(0))
			}
		}
	}
}
