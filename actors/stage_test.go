package actors_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/google/go-cmp/cmp"

	"github.com/omnibus-runtime/omnibus/actors"
)

// probe is a Receiver of functions; nil functions do nothing.
type probe struct {
	onReceive   func(message any)
	onFailed    func(message any, cause *actors.Panic)
	onRestarted func()
	onDropped   func(message any, reason actors.DropReason)
}

func (p *probe) Receive(message any) {
	if p.onReceive != nil {
		p.onReceive(message)
	}
}

func (p *probe) Failed(message any, cause *actors.Panic) {
	if p.onFailed != nil {
		p.onFailed(message, cause)
	}
}

func (p *probe) Restarted() {
	if p.onRestarted != nil {
		p.onRestarted()
	}
}

func (p *probe) Dropped(message any, reason actors.DropReason) {
	if p.onDropped != nil {
		p.onDropped(message, reason)
	}
}

// journal is a probe that records its calls. It has no lock: -race reports it if a
// stage and its supervisor call it concurrently.
type journal struct {
	probe
	seen []string
}

func (j *journal) note(format string, args ...any) {
	j.seen = append(j.seen, fmt.Sprintf(format, args...))
}

func newJournal() *journal {
	j := &journal{}
	j.onReceive = func(message any) {
		j.note("%v", message)
		if text, ok := message.(string); ok && strings.HasPrefix(text, "bad") {
			panic(text)
		}
	}
	j.onFailed = func(message any, cause *actors.Panic) { j.note("failed %v: %v", message, cause.Value) }
	j.onRestarted = func() { j.note("restarted") }
	j.onDropped = func(message any, reason actors.DropReason) { j.note("dropped %v: %v", message, reason) }
	return j
}

func (j *journal) check(t *testing.T, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, j.seen); diff != "" {
		t.Errorf("the stage saw (-want +got):\n%s", diff)
	}
}

func spawn(t testing.TB, s *actors.System, name string, r actors.Receiver, opts actors.StageOptions) *actors.Stage {
	t.Helper()
	st, err := s.Spawn(name, r, opts)
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func TestStageHandlesInOrder(t *testing.T) {
	const messages = 1000
	synctest.Test(t, func(t *testing.T) {
		var got []any
		r := &probe{onReceive: func(message any) { got = append(got, message) }}
		st := spawn(t, newSystem(t), "ordered", r, actors.StageOptions{Mailbox: actors.MailboxOptions{Capacity: 3}})
		st.Post(nil) // a valid message
		want := []any{nil}
		for i := range messages {
			st.Post(i)
			want = append(want, i)
		}
		synctest.Wait()
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("handled (-want +got):\n%s", diff)
		}
		if st.Len() != 0 || st.Restarts() != 0 {
			t.Errorf("Len() = %d, Restarts() = %d", st.Len(), st.Restarts())
		}
	})
}

// TestStagePanicKeepsTheQueue panics on two of five messages.
func TestStagePanicKeepsTheQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal()
		gate := make(chan struct{})
		first := j.onReceive
		j.onReceive = func(message any) { <-gate; first(message) }
		var cause *actors.Panic
		note := j.onFailed
		j.onFailed = func(message any, p *actors.Panic) { cause = p; note(message, p) }
		st := spawn(t, newSystem(t), "failing", j, actors.StageOptions{})
		for _, message := range []string{"a", "bad 1", "b", "bad 2", "c"} {
			st.Post(message)
		}
		close(gate)
		synctest.Wait()
		j.check(t, "a",
			"bad 1", "failed bad 1: bad 1", "restarted", "b",
			"bad 2", "failed bad 2: bad 2", "restarted", "c")
		if st.Restarts() != 2 {
			t.Errorf("Restarts() = %d, want 2", st.Restarts())
		}
		if !strings.Contains(string(cause.Stack), "newJournal") {
			t.Errorf("the stack does not show the handler:\n%s", cause.Stack)
		}
	})
}

// TestPanicIsAnError panics with an error, and ends a goroutine by Goexit.
func TestPanicIsAnError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		var causes []error
		r := &probe{
			onReceive: func(message any) {
				if message == "exit" {
					runtime.Goexit()
				}
				panic(message)
			},
			onFailed: func(_ any, cause *actors.Panic) { causes = append(causes, cause) },
		}
		st := spawn(t, newSystem(t), "failing", r, actors.StageOptions{})
		st.Post(broken)
		st.Post("exit")
		st.Post("text")
		synctest.Wait()
		if len(causes) != 3 {
			t.Fatalf("%d failures, want 3: %v", len(causes), causes)
		}
		if !errors.Is(causes[0], broken) || !strings.Contains(causes[1].Error(), "Goexit") || errors.Unwrap(causes[2]) != nil {
			t.Errorf("causes %v", causes)
		}
		if got := causes[2].Error(); got != "panic: text" {
			t.Errorf("Error() = %q", got)
		}
	})
}

// TestStagePausesWhileFailedRuns blocks the supervisor in Failed: the stage waits
// for it, and so do callers of the supervisor, but other stages run.
func TestStagePausesWhileFailedRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		gate := make(chan struct{})
		j := newJournal()
		note := j.onFailed
		j.onFailed = func(message any, cause *actors.Panic) { <-gate; note(message, cause) }
		failing := spawn(t, s, "failing", j, actors.StageOptions{})
		other := newJournal()
		going := spawn(t, s, "going", other, actors.StageOptions{})
		failing.Post("bad")
		failing.Post("next")
		synctest.Wait()
		spawned := make(chan error, 1)
		go func() {
			_, err := s.Spawn("third", &probe{}, actors.StageOptions{})
			spawned <- err
		}()
		going.Post("goes on")
		synctest.Wait()
		j.check(t, "bad")
		other.check(t, "goes on")
		if failing.Len() != 1 || len(spawned) != 0 {
			t.Errorf("%d messages wait and %d answers came while Failed runs, want 1 and 0", failing.Len(), len(spawned))
		}
		close(gate)
		if err := <-spawned; err != nil {
			t.Error(err)
		}
		synctest.Wait()
		j.check(t, "bad", "failed bad: bad", "restarted", "next")
	})
}

// TestStageRestartedPanics lets Restarted panic twice.
func TestStageRestartedPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		j := newJournal()
		left := 2
		j.onRestarted = func() {
			j.note("restarted")
			if left--; left >= 0 {
				panic("not yet")
			}
		}
		st := spawn(t, newSystem(t), "failing", j, actors.StageOptions{})
		st.Post("bad")
		st.Post("next")
		synctest.Wait()
		j.check(t, "bad", "failed bad: bad", "restarted",
			"failed <nil>: not yet", "restarted", "failed <nil>: not yet", "restarted", "next")
		if st.Restarts() != 3 {
			t.Errorf("Restarts() = %d, want 3", st.Restarts())
		}
	})
}

// TestCloseDropsQueuedMessages closes a system while a handler runs, with messages
// in the queue and a sender that waits for space.
func TestCloseDropsQueuedMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actors.NewSystem(actors.Options{})
		gate := make(chan struct{})
		j := newJournal()
		note := j.onReceive
		j.onReceive = func(message any) { <-gate; note(message) }
		var mu sync.Mutex
		drops := map[any]actors.DropReason{}
		j.onDropped = func(message any, reason actors.DropReason) {
			mu.Lock()
			defer mu.Unlock()
			if _, twice := drops[message]; twice {
				t.Errorf("%v was dropped twice", message)
			}
			drops[message] = reason
		}
		st := spawn(t, s, "closing", j, actors.StageOptions{Mailbox: actors.MailboxOptions{Capacity: 2}})
		st.Post("in hand")
		synctest.Wait()
		st.Post(1)
		st.Post(2)
		go st.Post("waits for space")
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := s.Close(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("Close = %v, want the context's error", err)
		}
		synctest.Wait()
		close(gate)
		closeNow(t, s)
		st.Post("late")
		synctest.Wait()
		j.check(t, "in hand")
		want := map[any]actors.DropReason{
			1: actors.DropStopped, 2: actors.DropStopped,
			"waits for space": actors.DropClosed, "late": actors.DropClosed,
		}
		if diff := cmp.Diff(want, drops); diff != "" {
			t.Errorf("drops (-want +got):\n%s", diff)
		}
	})
}

// TestStageAccounting posts from many goroutines to stages that panic now and
// then, and closes the system meanwhile: each message reaches the receiver once, in
// Receive, Failed or Dropped.
func TestStageAccounting(t *testing.T) {
	const stages, senders, each = 3, 4, 1500
	for _, plain := range []bool{true, false} {
		t.Run(fmt.Sprintf("plain=%v", plain), func(t *testing.T) {
			noLeaks(t)
			s := actors.NewSystem(actors.Options{})
			f := newFates(stages*senders, each)
			var failed, dropped atomic.Int64
			half := make(chan struct{})
			var group sync.WaitGroup
			for i := range stages {
				var st *actors.Stage
				n := 0
				handle := func(message any) {
					p := message.(*parcel)
					if n++; n%101 == 0 {
						panic("broken")
					}
					if !f.handle(p) {
						t.Errorf("%v was overtaken by a later message of its sender", *p)
					}
				}
				r := &probe{
					onReceive: handle,
					onFailed:  func(message any, _ *actors.Panic) { f.note(message.(*parcel), &failed) },
					onDropped: func(message any, _ actors.DropReason) { f.note(message.(*parcel), &dropped) },
				}
				opts := actors.StageOptions{Mailbox: actors.MailboxOptions{Capacity: 16}}
				if !plain {
					r.onReceive = func(message any) { st.Pass(message) }
					opts.Props = actor.PropsFromFunc(func(c actor.Context) {
						if p, ok := c.Message().(*parcel); ok {
							handle(p)
						}
					})
				}
				st = spawn(t, s, fmt.Sprint("stage ", i), r, opts)
				for sender := range senders {
					group.Go(func() {
						for number := range each {
							st.Post(&parcel{sender: i*senders + sender, number: number})
							if i+sender == 0 && number == each/2 {
								close(half)
							}
						}
					})
				}
			}
			<-half
			closeNow(t, s)
			group.Wait()
			f.handled.Add(failed.Load() + dropped.Load())
			f.check(t)
			t.Logf("failed %d, dropped %d", failed.Load(), dropped.Load())
			if failed.Load() == 0 || dropped.Load() == 0 {
				t.Errorf("%d failed and %d were dropped, want some of each", failed.Load(), dropped.Load())
			}
		})
	}
}

func TestSpawnNamesAreUnique(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		j := newJournal()
		st := spawn(t, s, "a", j, actors.StageOptions{})
		made := 0
		again := actor.PropsFromProducer(func() actor.Actor { made++; return actor.ReceiveFunc(func(actor.Context) {}) })
		if other, err := s.Spawn("a", &probe{}, actors.StageOptions{Props: again}); err == nil || other != nil || made != 0 {
			t.Errorf("Spawn under a name that is taken = %v, %v, and made %d actors; want an error", other, err, made)
		}
		spawn(t, s, "b", &probe{}, actors.StageOptions{})
		st.Post("still there")
		synctest.Wait()
		j.check(t, "still there")

		// The name of a stage whose actor has stopped itself is free.
		var self *actors.Stage
		quitter := actor.PropsFromFunc(func(c actor.Context) {
			if c.Message() == "quit" {
				c.Stop(c.Self())
			}
		})
		self = spawn(t, s, "c", &probe{onReceive: func(message any) { self.Pass(message) }}, actors.StageOptions{Props: quitter})
		self.Post("quit")
		synctest.Wait()
		next := newJournal()
		spawn(t, s, "c", next, actors.StageOptions{}).Post("hello")
		synctest.Wait()
		next.check(t, "hello")
	})
}

// TestSpawnDuringClose spawns while a handler delays the close of a system, and after
// the close.
func TestSpawnDuringClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := actors.NewSystem(actors.Options{})
		gate := make(chan struct{})
		st := spawn(t, s, "busy", &probe{onReceive: func(any) { <-gate }}, actors.StageOptions{})
		st.Post(1)
		synctest.Wait()
		go closeNow(t, s)
		synctest.Wait()
		refused := func() {
			t.Helper()
			if late, err := s.Spawn("late", &probe{}, actors.StageOptions{}); !errors.Is(err, actors.ErrStopped) || late != nil {
				t.Errorf("Spawn = %v, %v, want ErrStopped", late, err)
			}
		}
		refused()
		close(gate)
		closeNow(t, s)
		refused()
	})
}

// TestSpawnAndCloseAtOnce races Spawn with Close: every stage ends either way.
func TestSpawnAndCloseAtOnce(t *testing.T) {
	noLeaks(t)
	for range 50 {
		s := actors.NewSystem(actors.Options{})
		var group sync.WaitGroup
		for i := range 8 {
			group.Go(func() {
				st, err := s.Spawn(fmt.Sprint("stage ", i), &probe{}, actors.StageOptions{})
				switch {
				case err == nil:
					st.Post(1)
				case !errors.Is(err, actors.ErrStopped):
					t.Error(err)
				}
			})
		}
		group.Go(func() { closeNow(t, s) })
		group.Wait()
	}
}

// TestSpawnOfBrokenProps spawns an actor whose producer panics.
func TestSpawnOfBrokenProps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		j := newJournal()
		st := spawn(t, s, "whole", j, actors.StageOptions{})
		broken := errors.New("no model")
		props := actor.PropsFromProducer(func() actor.Actor { panic(broken) })
		var p *actors.Panic
		if _, err := s.Spawn("broken", &probe{}, actors.StageOptions{Props: props}); !errors.As(err, &p) || !errors.Is(err, broken) {
			t.Errorf("Spawn = %v, want the panic", err)
		}
		st.Post("untouched")
		synctest.Wait()
		j.check(t, "untouched")
	})
}

// echo is a user's actor that records its messages and answers requests.
type echo struct {
	number int // of the incarnation
	seen   *[]string
	on     map[string]func(actor.Context)
}

func (e *echo) Receive(c actor.Context) {
	text, ok := c.Message().(string)
	if !ok {
		text = strings.TrimPrefix(fmt.Sprintf("%T", c.Message()), "*actor.")
	}
	*e.seen = append(*e.seen, fmt.Sprintf("%d %s", e.number, text))
	if act := e.on[text]; act != nil {
		act(c)
	}
}

// spawnEcho starts a stage that passes all messages on to an echo.
func spawnEcho(t *testing.T, s *actors.System, r *probe, on map[string]func(actor.Context)) (st *actors.Stage, seen *[]string) {
	t.Helper()
	incarnations := 0
	seen = new([]string)
	props := actor.PropsFromProducer(func() actor.Actor {
		incarnations++
		return &echo{number: incarnations, seen: seen, on: on}
	})
	if r.onReceive == nil {
		r.onReceive = func(message any) { st.Pass(message) }
	}
	st = spawn(t, s, "user's", r, actors.StageOptions{Props: props})
	return st, seen
}

// TestStageWithProps sends a message to the receiver, which passes it to the user's
// actor; the actor can answer the sender.
func TestStageWithProps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSystem(t)
		outside := quietSystem()
		var answers []any
		sender := outside.Root.Spawn(actor.PropsFromFunc(func(c actor.Context) {
			if text, ok := c.Message().(string); ok {
				answers = append(answers, text)
			}
		}))
		var self *actor.PID
		var inside *actor.ActorSystem
		var received []any
		r := &probe{}
		st, seen := spawnEcho(t, s, r, map[string]func(actor.Context){
			"Started": func(c actor.Context) { self, inside = c.Self(), c.ActorSystem() },
			"ask": func(c actor.Context) {
				if c.Sender() == nil {
					t.Error("a message was passed on without its sender")
					return
				}
				outside.Root.Send(sender, "answer to "+c.Sender().Id)
			},
			"post": func(c actor.Context) {
				if c.Sender() != nil {
					t.Errorf("a message that was posted has a sender: %v", c.Sender())
				}
			},
		})
		pass := r.onReceive
		r.onReceive = func(message any) {
			received = append(received, message)
			if message != "keep" {
				pass(message)
			}
		}
		synctest.Wait()
		inside.Root.RequestWithCustomSender(self, "ask", inside.NewLocalPID("me"))
		st.Post("keep")
		st.Post("post")
		synctest.Wait()
		st.Pass("from outside") // does nothing
		if diff := cmp.Diff([]string{"1 Started", "1 ask", "1 post"}, *seen); diff != "" {
			t.Errorf("the actor saw (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]any{"ask", "keep", "post"}, received); diff != "" {
			t.Errorf("the receiver saw (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]any{"answer to me"}, answers); diff != "" {
			t.Errorf("answers (-want +got):\n%s", diff)
		}
		if err := outside.Root.StopFuture(sender).Wait(); err != nil {
			t.Error(err)
		}
	})
}

// TestStageWithPropsRestarts lets the user's actor panic on a request: a new actor
// goes on, and the receiver may pass a message to it first.
func TestStageWithPropsRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var self *actor.PID
		var inside *actor.ActorSystem
		var failed []any
		r := &probe{}
		r.onFailed = func(message any, cause *actors.Panic) {
			failed = append(failed, message, cause.Value)
			if !strings.Contains(string(cause.Stack), "echo") {
				t.Errorf("the stack does not show the actor:\n%s", cause.Stack)
			}
		}
		st, seen := spawnEcho(t, newSystem(t), r, map[string]func(actor.Context){
			"Started": func(c actor.Context) { self, inside = c.Self(), c.ActorSystem() },
			"bad":     func(actor.Context) { panic("broken") },
		})
		r.onRestarted = func() { st.Pass("again") }
		synctest.Wait()
		inside.Root.RequestWithCustomSender(self, "bad", inside.NewLocalPID("me"))
		st.Post("next")
		synctest.Wait()
		want := []string{"1 Started", "1 bad", "1 Restarting", "2 Started", "2 again", "2 next"}
		if diff := cmp.Diff(want, *seen); diff != "" {
			t.Errorf("the actors saw (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]any{"bad", "broken"}, failed); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
	})
}

// TestStageWithPropsFailsAtItsEnd lets the user's actor panic on the messages about
// its end. The actor must end all the same, and Close must return.
func TestStageWithPropsFailsAtItsEnd(t *testing.T) {
	fail := func(actor.Context) { panic("broken") }
	spawnChild := func(c actor.Context) { c.Spawn(actor.PropsFromFunc(func(actor.Context) {})) }
	tests := []struct {
		name string
		on   map[string]func(actor.Context)
		logs string // the panics that go to the log
	}{
		{name: "stopping", on: map[string]func(actor.Context){"Stopping": fail}, logs: "user's: broken\n"},
		{name: "stopped", on: map[string]func(actor.Context){"Stopped": fail}, logs: "user's: broken\n"},
		{name: "restarting", on: map[string]func(actor.Context){"bad": fail, "Restarting": fail}, logs: "user's: broken\n"},
		{name: "child's end", on: map[string]func(actor.Context){"Started": spawnChild, "Terminated": fail}, logs: "user's: broken\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := &panicLog{}
				s := actors.NewSystem(actors.Options{Logger: slog.New(log)})
				st, seen := spawnEcho(t, s, &probe{}, tt.on)
				st.Post("bad")
				st.Post("next")
				synctest.Wait()
				if last := (*seen)[len(*seen)-1]; !strings.HasSuffix(last, "next") {
					t.Errorf("the actor saw %s last, want next", last)
				}
				closeNow(t, s)
				if last := (*seen)[len(*seen)-1]; !strings.HasSuffix(last, "Stopped") {
					t.Errorf("the actor saw %s last, want Stopped", last)
				}
				if got := log.text.String(); got != tt.logs {
					t.Errorf("logged %q, want %q", got, tt.logs)
				}
			})
		})
	}
}

// TestStageWithPropsFailsWhileStopping lets the user's actor panic on a message of
// its child while it waits for the child's end and the system closes. A restart would
// cancel its stop.
func TestStageWithPropsFailsWhileStopping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gate := make(chan struct{})
		child := actor.PropsFromFunc(func(c actor.Context) {
			if _, ok := c.Message().(*actor.Stopping); ok {
				c.Send(c.Parent(), "last word")
				c.Send(c.Parent(), "and one more")
				<-gate
			}
		})
		var failed []any
		r := &probe{onFailed: func(message any, _ *actors.Panic) { failed = append(failed, message) }}
		s := actors.NewSystem(actors.Options{})
		_, seen := spawnEcho(t, s, r, map[string]func(actor.Context){
			"Started":   func(c actor.Context) { c.Spawn(child) },
			"last word": func(actor.Context) { panic("broken") },
		})
		synctest.Wait()
		go closeNow(t, s)
		synctest.Wait()
		close(gate)
		closeNow(t, s)
		want := []string{"1 Started", "1 Stopping", "1 last word", "1 and one more", "1 Terminated", "1 Stopped"}
		if diff := cmp.Diff(want, *seen); diff != "" {
			t.Errorf("the actor saw (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]any{"last word"}, failed); diff != "" {
			t.Errorf("failed (-want +got):\n%s", diff)
		}
	})
}

// panicLog is a slog handler that keeps the panics of users' actors.
type panicLog struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *panicLog) Handle(_ context.Context, record slog.Record) error {
	if record.Level < slog.LevelError {
		return nil
	}
	fields := map[string]string{}
	record.Attrs(func(a slog.Attr) bool { fields[a.Key] = a.Value.String(); return true })
	l.mu.Lock()
	defer l.mu.Unlock()
	fmt.Fprintf(&l.text, "%s: %s\n", fields["stage"], fields["panic"])
	return nil
}

func (l *panicLog) Enabled(context.Context, slog.Level) bool { return true }
func (l *panicLog) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l *panicLog) WithGroup(string) slog.Handler            { return l }

// TestPausesBetweenFailedStarts: a user's actor whose start panics is restarted after
// delays that double, and its messages wait.
func TestPausesBetweenFailedStarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var starts []time.Duration
		handled := make(chan struct{})
		r := &probe{}
		st, _ := spawnEcho(t, newSystem(t), r, map[string]func(actor.Context){
			"Started": func(actor.Context) {
				if starts = append(starts, time.Since(began)); len(starts) < 4 {
					panic("no device")
				}
			},
			"work": func(actor.Context) { close(handled) },
		})
		st.Post("work")
		<-handled
		ms := time.Millisecond
		if want := []time.Duration{0, 10 * ms, 30 * ms, 70 * ms}; !slices.Equal(starts, want) {
			t.Errorf("started at %v, want %v", starts, want)
		}
	})
}
