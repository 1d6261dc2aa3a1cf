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
	replicas []*replica // of exec; none for a stage that other processes attach to

	// Guarded by host.mu.
	served  bool // a process has served it
	givenUp bool
	failed  string // how its last process ended, if it failed
}

// replica is a process of a stage, or the successor of one.
type replica struct {
	stage  *stage
	number int

	// Guarded by host.mu.
	child *child.Child // nil: not started
	ready bool         // a process has served its stage
	ended *child.Event // nil: another process follows
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

// startStages starts all processes, which become ready in any order.
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

// childSpec returns the spec of a process of a stage.
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
		Restart: child.Policy(st.Restart), // file and package use the same words
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

// resolve resolves the paths in a command line of the file. A program without a slash is looked up in
// PATH.
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

// environment returns the variables that processes get in addition to the host's environment: the
// socket, the bus, and those of the file.
func (h *running) environment(own map[string]string) []string {
	var env []string
	if _, set := os.LookupEnv("PYTHONUNBUFFERED"); !set {
		env = append(env, "PYTHONUNBUFFERED=1") // else Python prints its lines when it ends
	}
	for _, key := range slices.Sorted(maps.Keys(own)) {
		env = append(env, key+"="+own[key])
	}
	if h.opts.Wait != "" {
		env = append(env, bus.EnvWait+"="+string(h.opts.Wait))
	}
	return append(env, node.EnvSocket+"="+h.socket, node.EnvBus+"="+h.pipeline.Name)
}

// onEvent handles an event of a child. It runs on the child's goroutine.
func (h *running) onEvent(e child.Event) {
	r := h.replica(e.Name)
	if r == nil {
		return
	}
	h.mu.Lock()
	switch e.Kind {
	case child.EventStarted:
		r.ended = nil // Restart started it
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
	lost := e.Last() && h.phase == PhaseReady && r.stage.lost() // also after a failed restart by hand
	r.stage.givenUp = r.stage.givenUp || lost
	h.mu.Unlock()
	h.signal()
	if startFails {
		h.children.Refuse() // the run ends: no other process needs to start
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

// fatal reports whether, during the start, a process ended in a way in which its successor would end,
// too; a signal from elsewhere is no such way.
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

// lost reports whether no process of the stage has a successor. The host's mutex must be held.
func (s *stage) lost() bool {
	return !slices.ContainsFunc(s.replicas, func(r *replica) bool { return r.ended == nil })
}

// giveUp fails the requests that wait for a stage, now and until another process serves it.
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

// abandoned returns the error of a run that ends with given-up stages whose processes failed. A run
// with a main process gets none: the main process decides about success.
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

// number gives a child of this host its own replica number. Other processes get numbers after those.
func (h *running) number(name string, pid int) int {
	s := h.byName[name]
	if c, ours := h.children.Find(pid); ours {
		if r := h.replica(c.Name()); r != nil && r.stage == s {
			return r.number
		}
	}
	return len(s.replicas)
}

// onServe is called when a process serves a stage: a child of this host is then ready.
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

// onStuck kills a child of this host that makes no progress. Other processes are left to their owners.
func (h *running) onStuck(pid int, reason error) {
	if c, ok := h.children.Find(pid); ok {
		c.Kill(reason.Error())
	}
}

// onHung makes a child of this host write its stacks, and kills it.
func (h *running) onHung(pid int, reason error) {
	if c, ok := h.children.Find(pid); ok {
		c.Quit(reason.Error())
	}
}

// autopsyWait bounds an autopsy.
const autopsyWait = 100 * time.Millisecond

// autopsy returns what is known of a dead process.
func (h *running) autopsy(pid int) string {
	ctx, cancel := context.WithTimeout(context.Background(), autopsyWait)
	defer cancel()
	death, ok := h.children.Autopsy(ctx, pid)
	if !ok {
		return ""
	}
	return fmt.Sprintf("%s: %s%s", death.Name, death.Cause(), lastLines(death.Lines))
}

// lastLines returns the end of a dead process's output, for the errors of requests.
func lastLines(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	return "; its last lines:\n  " + strings.Join(lastOf(lines), "\n  ")
}

func lastOf(lines []string) []string { return lines[max(0, len(lines)-5):] }
