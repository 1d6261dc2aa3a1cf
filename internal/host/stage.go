package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/node"
	"github.com/omnibus-runtime/omnibus/config"
	"github.com/omnibus-runtime/omnibus/internal/host/child"
)

// stage is a stage that processes serve.
type stage struct {
	config.Stage
	replicas []*replica // of exec; none for a stage that others attach to

	// Guarded by host.mu.
	served  bool // by anybody, at any time
	givenUp bool
	failed  string // how the process ended for which it is given up, if that was no good end
}

// replica is a process of a stage, and those that come after it.
type replica struct {
	stage  *stage
	number int

	// Guarded by host.mu.
	child *child.Child // nil: not started
	ready bool         // served its stage, at any time
	ended *child.Event // why none comes any more
}

func (r *replica) name() string { return fmt.Sprintf("%s/%d", r.stage.ID, r.number) }

// addStages lists the stages that processes serve.
func (h *running) addStages() {
	for _, st := range h.pipeline.Stages {
		if !st.Remote() {
			continue
		}
		s := &stage{Stage: st}
		if len(st.Exec) > 0 {
			for i := range max(st.Replicas, 1) {
				s.replicas = append(s.replicas, &replica{stage: s, number: i})
			}
		}
		h.stages = append(h.stages, s)
		h.byName[st.ID] = s
	}
}

// startTimeout is how long the stage may take until it is served.
func (s *stage) startTimeout() time.Duration {
	if s.StartTimeout > 0 {
		return s.StartTimeout
	}
	return DefaultStartTimeout
}

// startStages starts all processes. They get ready side by side.
func (h *running) startStages() error {
	var errs []error
	for _, s := range h.stages {
		for _, r := range s.replicas {
			if err := h.start(r); err != nil {
				errs = append(errs, fmt.Errorf("stage %q: %w", s.ID, err))
				break // the others would fail in the same way
			}
		}
	}
	return errors.Join(errs...)
}

func (h *running) start(r *replica) error {
	spec, err := h.childSpec(r)
	if err != nil {
		return err
	}
	c, err := h.children.Start(spec)
	if err != nil {
		return err
	}
	h.mu.Lock()
	r.child = c
	h.mu.Unlock()
	return nil
}

// childSpec says how to run a process of a stage.
func (h *running) childSpec(r *replica) (child.Spec, error) {
	st := r.stage.Stage
	args, dir, err := h.resolve(st.Exec, st.Cwd)
	if err != nil {
		return child.Spec{}, err
	}
	env := h.environment(st.Env)
	return child.Spec{
		Name: r.name(), Args: args, Dir: dir,
		Env:     append(env, node.EnvStage+"="+st.ID, node.EnvReplica+"="+strconv.Itoa(r.number)),
		Restart: child.Policy(st.Restart), // the words are the same
		Backoff: child.Backoff{Limit: st.MaxRestarts},
		Grace:   orDefault(st.Grace, DefaultStageGrace), StartTimeout: r.stage.startTimeout(),
	}, nil
}

func orDefault(d, instead time.Duration) time.Duration {
	if d == 0 {
		return instead
	}
	return d
}

// resolve finds the paths of a command line of the file. A program that is
// a name alone is looked up in PATH.
func (h *running) resolve(exec []string, cwd string) (args []string, dir string, err error) {
	args = slices.Clone(exec)
	if strings.Contains(args[0], "/") {
		if args[0], err = h.pipeline.Path(args[0]); err != nil {
			return nil, "", err
		}
	}
	if cwd == "" {
		cwd = "."
	}
	dir, err = h.pipeline.Path(cwd)
	return args, dir, err
}

// environment is what all processes get besides the host's own environment:
// where the bus is, and what the file says.
func (h *running) environment(own map[string]string) []string {
	var env []string
	if _, set := os.LookupEnv("PYTHONUNBUFFERED"); !set {
		env = append(env, "PYTHONUNBUFFERED=1") // else its lines would come when it ends
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		env = append(env, key+"="+own[key])
	}
	if h.opts.Wait != "" {
		env = append(env, bus.EnvWait+"="+string(h.opts.Wait))
	}
	return append(env, node.EnvSocket+"="+h.socket, node.EnvBus+"="+h.pipeline.Name)
}

// onEvent follows the life of a process. It runs on the child's goroutine.
func (h *running) onEvent(e child.Event) {
	r := h.replica(e.Name)
	if r == nil {
		return
	}
	h.mu.Lock()
	switch e.Kind {
	case child.EventStarted:
		r.ended = nil // it was restarted by hand
	case child.EventReady:
		r.ready = true
	case child.EventDone, child.EventStopped, child.EventGaveUp:
		r.ended = &e
	default:
	}
	starting := h.phase == PhaseStarting
	if starting && fatal(e) && h.startErr == nil && (!r.ready || r.ended != nil && r.stage.lost()) {
		h.startErr = &StageError{Stage: r.stage.ID, Served: r.ready, Death: e.Death, Err: e.Err}
	}
	startFails := h.startErr != nil
	lost := e.Last() && h.phase == PhaseReady && r.stage.lost() // also once more, after a restart by hand that failed
	r.stage.givenUp = r.stage.givenUp || lost
	h.mu.Unlock()
	h.signal()
	if startFails {
		h.children.Refuse() // the run ends: other processes would be started in vain
	}
	h.logEvent(e)
	if lost {
		h.giveUp(r.stage, e)
	}
}

func (h *running) logEvent(e child.Event) {
	level := slog.LevelInfo
	switch e.Kind {
	case child.EventRestarting:
		level = slog.LevelWarn
	case child.EventGaveUp:
		level = slog.LevelError
	default:
	}
	h.opts.Logger.Log(context.Background(), level, "a process changed its state",
		slog.String("process", e.Name), slog.String("event", e.Kind.String()), slog.Int("pid", e.PID),
		slog.Int("restarts", e.Restarts), slog.String("detail", e.String()))
}

// fatal reports whether a process ended, while the run starts, in a way in which
// the next one would, too: not by a signal from elsewhere.
func fatal(e child.Event) bool {
	switch e.Kind {
	case child.EventExited:
		return e.Death.Reason != child.ReasonRestart && (e.Death.Code >= 0 || e.Death.Reason != "")
	case child.EventDone, child.EventGaveUp:
		return true
	default:
		return false
	}
}

// lost reports whether none of the stage's processes comes back. It wants the
// host's mutex held.
func (s *stage) lost() bool {
	return !slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.ended == nil })
}

// giveUp fails the requests that wait for a stage, now and until somebody else
// serves it.
func (h *running) giveUp(s *stage, e child.Event) {
	why := e.String()
	if e.Kind == child.EventDone {
		why = fmt.Sprintf("%s: ended with %s, and its restart policy is %s", e.Name, e.Death.Cause(), s.Restart)
	}
	h.opts.Logger.Error("a stage is given up: requests that need it fail", slog.String("stage", s.ID), slog.String("last", why))
	if e.Death != nil {
		why += lastLines(e.Death.Lines)
	}
	if e.Kind == child.EventGaveUp {
		h.mu.Lock()
		s.failed = why
		h.mu.Unlock()
	}
	h.server.GiveUp(s.ID, fmt.Errorf("no process serves it any more: %s\nomnibus restart %s starts it again", why, s.ID))
}

// abandoned is the error of a run at whose end stages are given up whose processes did not
// end well. Where there is a main process, it knows what came of that.
func (h *running) abandoned() error {
	if h.main != nil {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	var all []error
	for _, s := range h.stages {
		if s.givenUp && s.failed != "" {
			all = append(all, fmt.Errorf("stage %q was given up, and requests that needed it failed: %s", s.ID, s.failed))
		}
	}
	return errors.Join(all...)
}

func (h *running) replica(name string) *replica {
	for _, s := range h.stages {
		for _, r := range s.replicas {
			if r.name() == name {
				return r
			}
		}
	}
	return nil
}

// number has a process of ours be the replica that it was started as, and others come
// behind those.
func (h *running) number(name string, pid int) int {
	s := h.byName[name]
	if c, ours := h.children.Find(pid); ours {
		if r := h.replica(c.Name()); r != nil && r.stage == s {
			return r.number
		}
	}
	return len(s.replicas)
}

// onServe learns that a process serves a stage: one of ours is ready then.
func (h *running) onServe(name string, number, pid int) {
	s := h.byName[name]
	c, ours := h.children.Find(pid)
	if ours {
		if r := h.replica(c.Name()); r != nil && r.stage == s {
			c.Ready(pid)
		}
	}
	h.mu.Lock()
	s.served, s.givenUp, s.failed = true, false, ""
	h.serves[pid]++
	h.mu.Unlock()
	h.signal()
	if !ours {
		h.opts.Logger.Info("a process attached", slog.String("stage", name), slog.Int("replica", number), slog.Int("pid", pid))
	}
}

// onStuck kills a process of ours that does not move. Others are their owners'.
func (h *running) onStuck(pid int, reason error) {
	if c, ok := h.children.Find(pid); ok {
		c.Kill(reason.Error())
	}
}

// onHung has a process of ours write where its handlers are, and kills it.
func (h *running) onHung(pid int, reason error) {
	if c, ok := h.children.Find(pid); ok {
		c.Quit(reason.Error())
	}
}

// autopsyWait is how long an autopsy takes.
const autopsyWait = 100 * time.Millisecond

// autopsy says what is known about a process that died.
func (h *running) autopsy(pid int) string {
	ctx, cancel := context.WithTimeout(context.Background(), autopsyWait)
	defer cancel()
	death, ok := h.children.Autopsy(ctx, pid)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s: %s%s", death.Name, death.Cause(), lastLines(death.Lines))
}

// lastLines is what errors of requests quote of a dead process's output.
func lastLines(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "; its last lines:\n  " + strings.Join(lastOf(lines), "\n  ")
}

func lastOf(lines []string) []string { return lines[max(0, len(lines)-5):] }
