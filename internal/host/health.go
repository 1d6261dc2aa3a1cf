package host

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/hang"
)

// hangTimeouts is how many stall timeouts without progress, while work waits, count as a hang. A stall
// that ends by itself, such as that of a stopped process which is killed, has ended by then.
const hangTimeouts = 3

// hangAdvice tells the user where to look.
const hangAdvice = "see omnibus status, if it answers, for what each request waits for; " +
	"SIGQUIT, or a second SIGTERM, ends the host and writes its goroutines to its standard error"

// watchHealth starts the watch for hangs. A negative timeout turns the reports of stalls off, but not
// this watch.
func (h *running) watchHealth(stallTimeout time.Duration) {
	if stallTimeout <= 0 {
		stallTimeout = DefaultStallTimeout
	}
	h.health = hang.Watch(hangTimeouts*stallTimeout, h.server.Progress, h.logHang)
}

// logHang logs the begin and the end of a hang.
func (h *running) logHang(state hang.Hang, hangs bool) {
	if hangs {
		h.opts.Logger.Error("the host hangs", slog.String("reason", describeHang(state)), slog.String("advice", hangAdvice))
		return
	}
	h.opts.Logger.Warn("the host moves again")
}

// describeHang returns what is known of a hang.
func describeHang(state hang.Hang) string {
	lasted := state.Lasted.Round(100 * time.Millisecond)
	if state.Waits == "" {
		return fmt.Sprintf("the bus has not answered for %v: a lock is held, or the store's writer is blocked", lasted)
	}
	return fmt.Sprintf("nothing has moved for %v while work waits: %s", lasted, state.Waits)
}

// serveHealth answers /healthz. It takes no lock of the bus.
func (h *running) serveHealth(w http.ResponseWriter, _ *http.Request) {
	if state, hangs := h.health.Hang(); hangs {
		http.Error(w, describeHang(state)+"\n"+hangAdvice, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// readyTimeout is shorter than the time that the web server gives an answer.
const readyTimeout = webTimeout / 2

// serveReady answers /readyz, even while the host hangs.
func (h *running) serveReady(timeout time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if _, hangs := h.health.Hang(); hangs {
			h.serveHealth(w, r)
			return
		}
		unready := make(chan []string, 1)
		go func() { unready <- h.unready() }()
		var why []string
		select {
		case why = <-unready:
		case <-time.After(timeout):
			why = []string{fmt.Sprintf("the bus has not answered for %v", timeout)}
		}
		if len(why) > 0 {
			http.Error(w, strings.Join(why, "\n"), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ready")
	}
}

// quitTimeout is how long a run may take to end after Quit: closing the bus, the last step, has
// closeTimeout.
const quitTimeout = closeTimeout + 3*time.Second

// errNotEnded is wrapped by the error of a run that did not end in time.
var errNotEnded = fmt.Errorf(
	"the host did not end within %v: its processes are killed, and what it held is left behind", quitTimeout)

// endInTime returns the error of the run. If the run takes too long to end after Quit is closed,
// endInTime kills all processes instead. It takes no lock of the bus, and of the host only locks that
// are never held over a call.
func (h *running) endInTime(ended <-chan error) error {
	select {
	case err := <-ended:
		return err
	case <-h.opts.Quit:
	}
	select {
	case err := <-ended:
		return err
	case <-time.After(quitTimeout):
	}
	select {
	case <-h.opened: // else no process was started
		h.children.Kill(ErrQuit.Error())
		h.mu.Lock()
		m := h.main
		h.mu.Unlock()
		m.kill()
	default:
	}
	return fmt.Errorf("%w: %w", ErrQuit, errNotEnded)
}
