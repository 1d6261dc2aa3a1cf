package child

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A model stands for a process, on the clock of synctest.
type model struct {
	id       int
	script   script
	mu       sync.Mutex
	signals  []string
	code     int
	text     string
	finished chan struct{}
	once     sync.Once
}

// A script says how a model behaves.
type script struct {
	after  time.Duration // when it ends by itself; 0: never
	code   int
	ready  time.Duration // when Ready is called; 0: never
	term   time.Duration // how long it takes to end after SIGTERM; 0: it ignores SIGTERM
	undead bool          // it survives SIGKILL
	fail   error         // of its start
}

func (p *model) end(code int, text string) {
	p.once.Do(func() {
		p.code, p.text = code, text
		close(p.finished)
	})
}

func (p *model) note(signal string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.signals = append(p.signals, signal)
}

func (p *model) pid() int          { return p.id }
func (p *model) owns(pid int) bool { return pid == p.id || pid == -p.id } // -id: a descendant
func (p *model) terminate() {
	p.note("TERM")
	if p.script.term > 0 {
		time.AfterFunc(p.script.term, func() { p.end(0, "exit status 0") })
	}
}

func (p *model) quit() { p.note("QUIT") }

func (p *model) kill() {
	p.note("KILL")
	if !p.script.undead {
		p.end(-1, "signal: killed")
	}
}
func (p *model) done() <-chan struct{}         { return p.finished }
func (p *model) exit() (code int, text string) { return p.code, p.text }
func (p *model) lines(int) []string            { return []string{fmt.Sprintf("line of %d", p.id)} }

// A stage is a manager of models, with a record of their events.
type stage struct {
	*Manager
	began time.Time
	child *Child
	over  chan struct{} // receives when the child has ended

	lock   sync.Mutex
	models []*model
	record []string
}

// newStage makes the processes of a child follow the scripts; the last script is for all further
// processes.
func newStage(t *testing.T, spec Spec, scripts ...script) *stage {
	t.Helper()
	s := &stage{began: time.Now(), over: make(chan struct{}, 10)}
	s.Manager = newManager(Options{OnEvent: func(e Event) {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.record = append(s.record, fmt.Sprintf("%v %s", time.Since(s.began), e))
		if e.Last() {
			s.over <- struct{}{}
		}
	}})
	s.start = func(*Spec) (process, error) {
		s.lock.Lock()
		defer s.lock.Unlock()
		next := scripts[min(len(s.models), len(scripts)-1)]
		p := &model{id: 100 + len(s.models), script: next, finished: make(chan struct{})}
		s.models = append(s.models, p)
		if next.fail != nil {
			return nil, next.fail
		}
		if next.after > 0 {
			time.AfterFunc(next.after, func() { p.end(next.code, fmt.Sprintf("exit status %d", next.code)) })
		}
		if next.ready > 0 {
			time.AfterFunc(next.ready, func() {
				c, _ := s.Find(p.id)
				c.Ready(p.id)
			})
		}
		return p, nil
	}
	spec.Name, spec.Args = "talker/0", []string{"talker"}
	var err error
	if s.child, err = s.Start(spec); err != nil {
		t.Fatal(err)
	}
	return s
}

// wait lets time pass until all goroutines are idle.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// ended waits until the child has ended, and stops it: its goroutine must have ended, too.
func (s *stage) ended(t *testing.T) {
	t.Helper()
	<-s.over
	if err := s.child.Stop(t.Context()); err != nil {
		t.Error(err)
	}
}

func (s *stage) want(t *testing.T, record ...string) {
	t.Helper()
	s.lock.Lock()
	defer s.lock.Unlock()
	if diff := cmp.Diff(record, s.record); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestSupervision(t *testing.T) {
	noMemory := &StartError{Name: "talker/0", Program: "talker", Path: "/bin/talker", Err: syscall.ENOMEM}
	gone := &StartError{Name: "talker/0", Program: "talker", Search: "/bin", Err: syscall.ENOENT}
	tests := []struct {
		name    string
		spec    Spec
		scripts []script
		want    []string
		state   State
		err     error // wrapped by the status, unless nil
	}{
		{
			name:    "crashes until it is given up",
			spec:    Spec{Backoff: Backoff{Limit: 2}},
			scripts: []script{{after: time.Second, code: 3}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 3",
				"1s talker/0: restart 1 in 200ms: exit status 3",
				"1.2s talker/0: started (pid 101)",
				"2.2s talker/0 (pid 101) ended after 1s: exit status 3",
				"2.2s talker/0: restart 2 in 400ms: exit status 3",
				"2.6s talker/0: started (pid 102)",
				"3.6s talker/0 (pid 102) ended after 1s: exit status 3",
				"3.6s talker/0: given up: 2 restarts within 1m0s; last: exit status 3",
			},
			state: Failed, err: &limitError{Restarts: 2, Window: time.Minute},
		},
		{
			name:    "never ready",
			spec:    Spec{Backoff: Backoff{Limit: 1, Window: time.Second}},
			scripts: []script{{}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"30s talker/0 (pid 100) ended after 30s: never became ready within 30s, its start_timeout (signal: killed)",
				"30s talker/0: restart 1 in 200ms: never became ready within 30s, its start_timeout (signal: killed)",
				"30.2s talker/0: started (pid 101)",
				"1m0.2s talker/0 (pid 101) ended after 30s: never became ready within 30s, its start_timeout (signal: killed)",
				"1m0.2s talker/0: given up: 1 restarts in a row, and it never became ready; last: never became ready within 30s, its start_timeout (signal: killed)",
			},
			state: Failed, err: &limitError{Restarts: 1},
		},
		{
			name:    "ready, and ends well under on-failure",
			spec:    Spec{Restart: OnFailure},
			scripts: []script{{ready: 20 * time.Second, after: time.Hour}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"20s talker/0: ready (pid 100)",
				"1h0m0s talker/0 (pid 100) ended after 1h0m0s: exit status 0",
				"1h0m0s talker/0: done",
			},
			state: Done,
		},
		{
			name:    "ends well before it is ready, under always, until it is given up",
			spec:    Spec{Restart: Always, Backoff: Backoff{Limit: 1}},
			scripts: []script{{after: time.Second}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 0",
				"1s talker/0: restart 1 in 200ms: exit status 0",
				"1.2s talker/0: started (pid 101)",
				"2.2s talker/0 (pid 101) ended after 1s: exit status 0",
				"2.2s talker/0: given up: 1 restarts within 1m0s; last: exit status 0",
			},
			state: Failed, err: &limitError{Restarts: 1, Window: time.Minute},
		},
		{
			name:    "fails under never",
			spec:    Spec{Restart: Never},
			scripts: []script{{after: time.Second, code: 1}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 1",
				"1s talker/0: given up: its restart policy is never; last: exit status 1",
			},
			state: Failed, err: errNever,
		},
		{
			name:    "its program has gone",
			spec:    Spec{Restart: OnFailure},
			scripts: []script{{after: time.Second, code: 1}, {fail: gone}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 1",
				"1s talker/0: restart 1 in 200ms: exit status 1",
				"1.2s talker/0: given up: child: start talker/0: " +
					`"talker" is not in PATH (/bin): install it, set PATH, or give its full path`,
			},
			state: Failed, err: gone,
		},
		{
			name:    "there was no memory for a while",
			spec:    Spec{Restart: OnFailure},
			scripts: []script{{after: time.Second, code: 1}, {fail: noMemory}, {after: time.Second}},
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 1",
				"1s talker/0: restart 1 in 200ms: exit status 1",
				`1.2s talker/0: restart 2 in 400ms: not started: "talker": cannot allocate memory`,
				"1.6s talker/0: started (pid 102)",
				"2.6s talker/0 (pid 102) ended after 1s: exit status 0",
				"2.6s talker/0: done",
			},
			state: Done,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, test.spec, test.scripts...)
				s.ended(t)
				s.want(t, test.want...)
				status := s.child.Status()
				if status.State != test.state || status.PID != 0 {
					t.Errorf("state %s with pid %d, want %s and none", status.State, status.PID, test.state)
				}
				if fmt.Sprint(status.Err) != fmt.Sprint(test.err) {
					t.Errorf("error %v, want %v", status.Err, test.err)
				}
			})
		})
	}
}

func TestStop(t *testing.T) {
	tests := []struct {
		name    string
		script  script
		patient bool // the context does not end
		knows   bool // it was told to leave
		took    time.Duration
		signals []string
		err     error
	}{
		{name: "it goes", script: script{term: time.Second}, patient: true, took: time.Second, signals: []string{"TERM"}},
		{name: "it ignores SIGTERM", patient: true, took: 5 * time.Second, signals: []string{"TERM", "KILL"}},
		{name: "the context ends first", took: 2 * time.Second, signals: []string{"TERM", "KILL"}},
		{name: "it leaves", script: script{after: time.Second / 2}, patient: true, knows: true, took: time.Second / 2},
		{name: "it stays", script: script{term: time.Second}, patient: true, knows: true, took: time.Second + time.Second, signals: []string{"TERM"}},
		{name: "it stays and ignores SIGTERM", patient: true, knows: true, took: time.Second + 5*time.Second, signals: []string{"TERM", "KILL"}},
		{name: "the context ends first, of one that stays", knows: true, took: 2 * time.Second, signals: []string{"TERM", "KILL"}},
		{
			name: "it cannot be killed", script: script{undead: true}, patient: true,
			took: 5*time.Second + killWait, signals: []string{"TERM", "KILL"}, err: errStuck,
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, Spec{}, test.script)
				ctx := t.Context()
				if !test.patient {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
					defer cancel()
				}
				stop := s.child.Stop
				if test.knows {
					stop = s.child.Leave
				}
				if err := stop(ctx); !errors.Is(err, test.err) {
					t.Errorf("error %v, want %v", err, test.err)
				}
				if took := time.Since(s.began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				p := s.models[0]
				p.mu.Lock()
				if diff := cmp.Diff(test.signals, p.signals); diff != "" {
					t.Errorf("signals (-want +got):\n%s", diff)
				}
				p.mu.Unlock()
				p.end(0, "") // a process that survived SIGKILL ends, too
				if err := s.child.Stop(t.Context()); err != nil {
					t.Errorf("second stop: %v", err)
				}
				if last := s.record[len(s.record)-1]; !strings.HasSuffix(last, "stopped") {
					t.Errorf("last event %q", last)
				}
				if got := s.child.Status().State; got != Stopped {
					t.Errorf("state %s", got)
				}
			})
		})
	}
}

// Stop during a pause does not wait for its end, and starts nothing.
func TestStopWhilePausing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{Backoff: Backoff{First: 10 * time.Second}}, script{after: time.Second, code: 1})
		wait(2 * time.Second)
		if got := s.child.Status(); got.State != Waiting || got.PID != 0 || got.LastExit == nil || got.LastExit.Code != 1 {
			t.Errorf("status %+v", got)
		}
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
		s.want(t,
			"0s talker/0: started (pid 100)",
			"1s talker/0 (pid 100) ended after 1s: exit status 1",
			"1s talker/0: restart 1 in 10s: exit status 1",
			"2s talker/0: stopped")
		if _, err := s.Start(s.child.spec); !errors.Is(err, ErrClosed) {
			t.Errorf("start after close: %v", err)
		}
	})
}

// A process that is stopped while it starts gets its grace, not the rest of the start timeout, and
// cannot become ready.
func TestStopWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{Grace: time.Minute}, script{ready: 10 * time.Second})
		wait(5 * time.Second)
		stopped := make(chan error)
		go func() { stopped <- s.child.Stop(context.Background()) }()
		wait(6 * time.Second)
		if got := s.child.Status().State; got != Stopping {
			t.Errorf("state %s", got)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		s.want(t,
			"0s talker/0: started (pid 100)",
			"1m5s talker/0 (pid 100) ended after 1m5s: stopped (signal: killed)",
			"1m5s talker/0: stopped")
	})
}

func TestKill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{Restart: OnFailure}, script{ready: time.Second}, script{after: time.Second})
		wait(5 * time.Second)
		s.child.Kill("broke the protocol")
		if s.child.Ready(100) {
			t.Error("a process that is being killed became ready")
		}
		s.ended(t)
		s.child.Kill("too late")
		s.want(t,
			"0s talker/0: started (pid 100)",
			"1s talker/0: ready (pid 100)",
			"5s talker/0 (pid 100) ended after 5s: broke the protocol (signal: killed)",
			"5s talker/0: restart 1 in 200ms: broke the protocol (signal: killed)",
			"5.2s talker/0: started (pid 101)",
			"6.2s talker/0 (pid 101) ended after 1s: exit status 0",
			"6.2s talker/0: done")
	})
}

// TestRestart: Restart starts a process in every state of a child, returns when it is ready, and does
// not count.
func TestRestart(t *testing.T) {
	crash, works := script{after: time.Second, code: 3}, script{ready: time.Second, term: time.Second}
	tests := []struct {
		name    string
		spec    Spec
		scripts []script
		after   time.Duration // when Restart is called
		took    time.Duration
		err     string // of Restart; empty: the process is ready
		want    []string
	}{
		{
			name: "while it runs", scripts: []script{works}, after: 5 * time.Second, took: 3 * time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0: ready (pid 100)",
				"7s talker/0 (pid 100) ended after 7s: restarted by hand (exit status 0)",
				"7s talker/0: started (pid 101)",
				"8s talker/0: ready (pid 101)",
			},
		},
		{
			name: "of a process that ignores SIGTERM", scripts: []script{{ready: time.Second}, works}, after: 5 * time.Second, took: 7 * time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0: ready (pid 100)",
				"11s talker/0 (pid 100) ended after 11s: restarted by hand (signal: killed)",
				"11s talker/0: started (pid 101)",
				"12s talker/0: ready (pid 101)",
			},
		},
		{
			name: "of a process that leaves when it is told", scripts: []script{{ready: time.Second, after: 5500 * time.Millisecond}, works}, after: 5 * time.Second, took: 1500 * time.Millisecond,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0: ready (pid 100)",
				"5.5s talker/0 (pid 100) ended after 5.5s: restarted by hand (exit status 0)",
				"5.5s talker/0: started (pid 101)",
				"6.5s talker/0: ready (pid 101)",
			},
		},
		{
			name: "while it starts", scripts: []script{{term: time.Second}, works}, after: 5 * time.Second, took: 2 * time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"6s talker/0 (pid 100) ended after 6s: restarted by hand (exit status 0)",
				"6s talker/0: started (pid 101)",
				"7s talker/0: ready (pid 101)",
			},
		},
		{
			name: "in a pause", spec: Spec{Backoff: Backoff{First: 10 * time.Second}}, scripts: []script{crash, works}, after: 2 * time.Second, took: time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 3",
				"1s talker/0: restart 1 in 10s: exit status 3",
				"2s talker/0: started (pid 101)",
				"3s talker/0: ready (pid 101)",
			},
		},
		{
			name: "of one that was given up", spec: Spec{Restart: Never}, scripts: []script{crash, works}, after: time.Minute, took: time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 3",
				"1s talker/0: given up: its restart policy is never; last: exit status 3",
				"1m0s talker/0: started (pid 101)",
				"1m1s talker/0: ready (pid 101)",
			},
		},
		{
			name: "of one that is done", spec: Spec{Restart: OnFailure}, scripts: []script{{after: time.Second}, works}, after: time.Minute, took: time.Second,
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0 (pid 100) ended after 1s: exit status 0",
				"1s talker/0: done",
				"1m0s talker/0: started (pid 101)",
				"1m1s talker/0: ready (pid 101)",
			},
		},
		{
			name: "and the new one dies", spec: Spec{Backoff: Backoff{Limit: 1}}, scripts: []script{works, crash, crash, works}, after: 5 * time.Second, took: 3 * time.Second,
			err: "talker/0 (pid 101) ended after 1s: exit status 3; its last lines:\n  line of 101",
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0: ready (pid 100)",
				"7s talker/0 (pid 100) ended after 7s: restarted by hand (exit status 0)",
				"7s talker/0: started (pid 101)",
				"8s talker/0 (pid 101) ended after 1s: exit status 3",
				"8s talker/0: restart 1 in 200ms: exit status 3",
			},
		},
		{
			name: "and the new one does not start", scripts: []script{works, {fail: errors.New("no room")}, works}, after: 5 * time.Second, took: 2 * time.Second,
			err: "no room",
			want: []string{
				"0s talker/0: started (pid 100)",
				"1s talker/0: ready (pid 100)",
				"7s talker/0 (pid 100) ended after 7s: restarted by hand (exit status 0)",
				"7s talker/0: restart 1 in 200ms: not started: no room",
			},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t, test.spec, test.scripts...)
				wait(test.after)
				err := s.child.Restart(t.Context(), func() {})
				if text := fmt.Sprint(err); err != nil && text != test.err || err == nil && test.err != "" {
					t.Errorf("error %v, want %q", err, test.err)
				}
				if took := time.Since(s.began) - test.after; took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				synctest.Wait()
				s.want(t, test.want...)
				if got := s.child.Status(); got.Restarts != 0 || err == nil && (got.State != Running || got.Err != nil) {
					t.Errorf("status %+v", got)
				}
				if err := s.Close(t.Context()); err != nil {
					t.Error(err)
				}
				if err := s.child.Restart(t.Context(), func() {}); !errors.Is(err, ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		})
	}
}

// TestRestartOfARestart: a second call ends the process that the first call started, and both wait for
// the next process.
func TestRestartOfARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{}, script{ready: time.Second, term: time.Second}, script{term: time.Second}, script{ready: time.Second})
		wait(2 * time.Second)
		asked := make(chan error)
		for range 2 {
			go func() { asked <- s.child.Restart(context.Background(), func() {}) }()
			wait(3 * time.Second)
		}
		for range 2 {
			if err := <-asked; err != nil {
				t.Error(err)
			}
		}
		if err := s.Close(canceled()); err != nil {
			t.Error(err)
		}
	})
}

// TestRestartIsStopped: a waiting call returns an error when the child is stopped.
func TestRestartIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{}, script{ready: time.Second, term: time.Second})
		wait(2 * time.Second)
		asked := make(chan error)
		for range 2 { // the second waits for the end of the first
			go func() { asked <- s.child.Restart(context.Background(), func() {}) }()
		}
		synctest.Wait()
		if err := s.child.Stop(t.Context()); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-asked; !errors.Is(err, errStopped) {
				t.Errorf("error %v, want %v", err, errStopped)
			}
		}
	})
}

// TestRefuse: after Refuse a process that ends has no successor.
func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{}, script{after: time.Second, code: 1})
		s.Refuse()
		s.ended(t)
		s.want(t,
			"0s talker/0: started (pid 100)",
			"1s talker/0 (pid 100) ended after 1s: exit status 1",
			"1s talker/0: stopped")
	})
}

// Events come in order, even if the process dies at the moment at which it becomes ready.
func TestReadyBeforeExit(t *testing.T) {
	for range 50 {
		synctest.Test(t, func(t *testing.T) {
			s := newStage(t, Spec{Restart: OnFailure}, script{})
			if !s.child.Ready(100) || !s.child.Ready(-100) {
				t.Error("not accepted")
			}
			s.models[0].end(0, "exit status 0")
			s.ended(t)
			s.want(t,
				"0s talker/0: started (pid 100)",
				"0s talker/0: ready (pid 100)",
				"0s talker/0 (pid 100) ended after 0s: exit status 0",
				"0s talker/0: done")
			if s.child.Ready(100) {
				t.Error("a dead process became ready")
			}
		})
	}
}

func TestAutopsy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{Backoff: Backoff{First: time.Second}},
			script{after: 10 * time.Second, code: 3}, script{})
		if !s.child.Ready(-100) {
			t.Fatal("the descendant was not accepted")
		}
		if _, ok := s.Autopsy(t.Context(), 101); ok {
			t.Error("knows a process before it is there")
		}
		impatient, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		want := Death{
			Name: "talker/0", PID: -100, Status: Unknown, Code: -1, Ready: true,
			Ran: 2 * time.Second, Lines: []string{"line of 100"},
		}
		got, ok := s.Autopsy(impatient, -100)
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("before its death: %t (-want +got):\n%s", ok, diff)
		}
		want = Death{
			Name: "talker/0", PID: 100, Status: "exit status 3", Code: 3, Ready: true,
			Ran: 10 * time.Second, Lines: []string{"line of 100"},
		}
		for _, when := range []string{"waiting for it", "in the pause", "while the next one runs", "after all"} {
			for _, pid := range []int{100, -100} {
				got, ok = s.Autopsy(t.Context(), pid)
				if diff := cmp.Diff(want, got); diff != "" || !ok {
					t.Errorf("%s, %d: %t (-want +got):\n%s", when, pid, ok, diff)
				}
			}
			switch when {
			case "in the pause":
				if _, ok := s.Find(100); ok {
					t.Error("finds a dead process")
				}
				wait(2 * time.Second)
			case "while the next one runs":
				if c, ok := s.Find(101); c != s.child || !ok {
					t.Error("does not find the process that runs")
				}
				s.child.Kill("enough")
				_ = s.Close(t.Context())
			}
		}
		if got, _ := s.Autopsy(t.Context(), 101); got.Reason != "enough" {
			t.Errorf("the second process: %+v", got)
		}
	})
}

// Dead processes are forgotten after maxDead others.
func TestDeadProcessesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, Spec{StartTimeout: time.Minute, Backoff: Backoff{Limit: -1}}, script{after: time.Second})
		for s.child.Status().Restarts < maxDead+3 {
			wait(time.Minute)
		}
		_ = s.Close(t.Context())
		if n := len(s.dead); n != maxDead {
			t.Errorf("%d graves, want %d", n, maxDead)
		}
		if _, ok := s.Autopsy(t.Context(), 100); ok {
			t.Error("the oldest is still known")
		}
		if _, ok := s.Autopsy(t.Context(), 100+maxDead); !ok {
			t.Error("a young one is not known")
		}
	})
}

// TestFindAProcessThatIsBeingStarted: Find finds a process that runs before its start has been
// recorded.
func TestFindAProcessThatIsBeingStarted(t *testing.T) {
	m := newManager(Options{})
	p := &model{id: 100, finished: make(chan struct{})}
	found := make(chan bool, 1)
	m.start = func(*Spec) (process, error) {
		go func() {
			_, ok := m.Find(p.id)
			found <- ok
		}()
		for len(found) == 0 && m.starting.TryRLock() { // until the lookup waits or has returned
			m.starting.RUnlock()
			runtime.Gosched()
		}
		return p, nil
	}
	c, err := m.Start(Spec{Name: "a", Args: []string{"a"}})
	if err != nil {
		t.Fatal(err)
	}
	if !<-found {
		t.Error("the process is not found")
	}
	if err := c.Stop(canceled()); err != nil {
		t.Error(err)
	}
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
