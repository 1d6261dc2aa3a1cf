package host

import (
	"path/filepath"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestNoStepRunsAfterCanceledStep: after a session ends while a step waits, no later step of the source
// runs, however late it comes: the emissions of a source are one stream.
func TestNoStepRunsAfterCanceledStep(t *testing.T) {
	srv, err := Listen(echoBus(t), filepath.Join(t.TempDir(), "host.sock"), ListenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close(t.Context()) })
	src := &source{sess: newTestSession(t, srv, 1).session}
	lost := stepFunc(func(waitMode) error { return bus.ErrCanceled })
	if err := src.do(lost); err != nil {
		t.Fatal(err)
	}
	src.sess.working.Wait()
	done := mayWait
	if err := src.do(stepFunc(func(how waitMode) error { done = how; return nil })); err != nil {
		t.Fatal(err)
	}
	if done != skip {
		t.Error("a step ran after a canceled one")
	}
}
