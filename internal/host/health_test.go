package host

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/hang"
)

func page(handler http.HandlerFunc) (code int, text string) {
	answer := httptest.NewRecorder()
	handler(answer, httptest.NewRequest(http.MethodGet, "/", http.NoBody))
	return answer.Code, answer.Body.String()
}

// TestHealthOfAHangingHost: /healthz and /readyz say what waits, for how long, and what to do.
func TestHealthOfAHangingHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &running{phase: PhaseReady}
		h.opts = h.opts.withDefaults()
		var waits atomic.Value
		waits.Store("")
		const bound = 16 * time.Second
		h.health = hang.Watch(bound, func() (uint64, string) { return 1, waits.Load().(string) }, h.logHang)
		defer h.health.Close()
		<-time.After(10 * bound)
		synctest.Wait()
		if code, text := page(h.serveHealth); code != http.StatusOK || text != "ok\n" {
			t.Errorf("nothing waits: %d %s", code, text)
		}
		if code, text := page(h.serveReady(time.Second)); code != http.StatusOK || text != "ready\n" {
			t.Errorf("nothing waits: %d %s", code, text)
		}
		waits.Store("3 requests")
		<-time.After(bound + 1500*time.Millisecond)
		synctest.Wait()
		for _, handler := range []http.HandlerFunc{h.serveHealth, h.serveReady(time.Second)} {
			code, text := page(handler)
			const reason = "nothing has moved for 16s while work waits: 3 requests\n"
			if code != http.StatusServiceUnavailable || !strings.HasPrefix(text, reason) ||
				!strings.Contains(text, "omnibus status") || !strings.Contains(text, "second SIGTERM") {
				t.Errorf("%d %s", code, text)
			}
		}
	})
}

// TestReadyWhileALockIsHeld: /readyz answers before the hang is detected.
func TestReadyWhileALockIsHeld(t *testing.T) {
	h := &running{phase: PhaseReady}
	h.health = hang.Watch(time.Hour, func() (uint64, string) { return 0, "" }, nil)
	defer h.health.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	code, text := page(h.serveReady(time.Millisecond))
	if code != http.StatusServiceUnavailable || text != "the bus has not answered for 1ms\n" {
		t.Errorf("%d %s", code, text)
	}
}

// TestRunThatDoesNotEnd: Run returns some time after Quit is closed, and not before.
func TestRunThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quit, ended := make(chan struct{}), make(chan error, 1)
		h := &running{opts: Options{Quit: quit}, opened: make(chan struct{})}
		result := make(chan error, 1)
		go func() { result <- h.endInTime(ended) }()
		<-time.After(time.Hour)
		close(quit)
		<-time.After(quitTimeout - time.Nanosecond)
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("left behind too early: %v", err)
		default:
		}
		if err := <-result; !errors.Is(err, ErrQuit) || !errors.Is(err, errNotEnded) {
			t.Errorf("left behind: %v", err)
		}
		well := errors.New("it has ended by itself")
		go func() {
			<-time.After(quitTimeout - time.Nanosecond)
			ended <- well
		}()
		if err := h.endInTime(ended); !errors.Is(err, well) {
			t.Errorf("ended in time: %v", err)
		}
	})
}
