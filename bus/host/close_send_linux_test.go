package host

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/testbus"
	"github.com/omnibus-runtime/omnibus/internal/wire"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// TestCloseSendAfterRequestEnded: a client that closes the inputs of a request that has just ended
// breaks no rule. Its session goes on.
func TestCloseSendAfterRequestEnded(t *testing.T) {
	broken := errors.New("broken")
	b := testbus.Open(t, testbus.Linear(bus.StageSpec{Name: "m", Handle: func(*bus.Task, *bus.Delivery) error { return broken }}),
		bus.Options{Store: shmstore.Options{ArenaBytes: 4 << 20, Memory: shmstore.Shared}})
	srv, err := Listen(b, filepath.Join(t.TempDir(), "bus.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(testbus.Soon(t)); err != nil {
			t.Error(err)
		}
	})
	s := newTestSession(t, srv, 1)
	for i, tc := range []struct {
		end  func(r *bus.Request)
		want bus.Outcome
		opts []bus.SubmitOption
	}{
		{func(*bus.Request) {}, bus.PastDeadline, []bus.SubmitOption{bus.WithDeadline(time.Now().Add(-time.Hour))}},
		{func(r *bus.Request) { _ = r.Send(t.Context(), "x") }, bus.Failed, nil},
		{func(r *bus.Request) { r.Abort(nil) }, bus.Aborted, nil},
		{func(r *bus.Request) { _ = r.CloseSend(t.Context()) }, bus.Completed, nil},
	} {
		r, err := b.Stream(t.Context(), tc.opts...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		// The source has not been told of its end yet.
		src := &source{sess: s.session, req: r, emitter: r.Input(t.Context())}
		if err := s.sources.addNumbered(src, wire.OwnSource|uint32(i+1)); err != nil {
			t.Fatal(err)
		}
		tc.end(r)
		_ = r.Wait(testbus.Soon(t))
		if r.Outcome() != tc.want {
			t.Fatalf("the request is %v, want %v", r.Outcome(), tc.want)
		}
		if err := s.closeSend(src.id); err != nil {
			t.Errorf("the end of the inputs of a request that is %v ends the session: %v", tc.want, err)
		}
	}
}
