package actors_test

import (
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/omnibus-runtime/omnibus/actors"
)

// quietSystem returns an actor system that logs nothing. A goroutine of the
// library counts dead letters for as long as the throttle interval; a short one
// keeps it from looking like a leak.
func quietSystem() *actor.ActorSystem {
	return actor.NewActorSystemWithConfig(actor.Configure(
		actor.WithDeadLetterThrottleInterval(time.Millisecond),
		actor.WithLoggerFactory(func(*actor.ActorSystem) *slog.Logger {
			return slog.New(slog.DiscardHandler)
		})))
}

// recorder is an invoker without an actor system. It records the messages; onUser,
// if not nil, then runs on the mailbox's worker.
type recorder struct {
	mu     sync.Mutex
	seen   []any
	onUser func(message any)
}

func (r *recorder) InvokeUserMessage(message any) {
	r.note(message)
	if r.onUser != nil {
		r.onUser(message)
	}
}

func (r *recorder) InvokeSystemMessage(message any) { r.note(fmt.Sprintf("%T", message)) }

func (r *recorder) EscalateFailure(reason, message any) {
	r.note(fmt.Sprintf("failure of %v: %v", message, reason))
}

func (r *recorder) note(message any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seen = append(r.seen, message)
}

// check compares the recorded messages with want.
func (r *recorder) check(t *testing.T, want ...any) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if diff := cmp.Diff(want, r.seen); diff != "" {
		t.Errorf("the actor saw (-want +got):\n%s", diff)
	}
}

// dropLog records the calls of OnDrop.
type dropLog struct {
	mu    sync.Mutex
	drops []string
}

func (l *dropLog) onDrop(message any, reason actors.DropReason) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drops = append(l.drops, fmt.Sprintf("%v %v", message, reason))
}

func (l *dropLog) check(t *testing.T, want ...string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if diff := cmp.Diff(want, l.drops); diff != "" {
		t.Errorf("drops (-want +got):\n%s", diff)
	}
}

// sort sorts the drops so far, since several goroutines may report them.
func (l *dropLog) sort() {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.drops)
}

// inBubble runs f in a synctest bubble with a started mailbox.
func inBubble(t *testing.T, options actors.MailboxOptions, r *recorder, f func(*testing.T, *actors.Mailbox)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		d := actors.NewDispatcher(nil)
		m := actors.NewMailbox(options)
		m.RegisterHandlers(r, d)
		m.Start()
		f(t, m)
		synctest.Wait()
		d.Close()
	})
}

func TestMailboxHoldsMessagesUntilStart(t *testing.T) {
	var r recorder
	synctest.Test(t, func(t *testing.T) {
		d := actors.NewDispatcher(nil)
		defer d.Close()
		m := actors.NewMailbox(actors.MailboxOptions{})
		m.PostUserMessage(1)
		m.RegisterHandlers(&r, d)
		m.PostUserMessage(2)
		m.PostSystemMessage(&actor.Started{})
		synctest.Wait()
		r.check(t)
		m.Start()
		synctest.Wait()
		r.check(t, "*actor.Started", 1, 2)
	})
}

func TestMailboxSystemMessagesFirst(t *testing.T) {
	r := &recorder{}
	inBubble(t, actors.MailboxOptions{}, r, func(t *testing.T, m *actors.Mailbox) {
		r.onUser = func(message any) {
			if message == 1 { // 2 and 3 are in the same batch
				m.PostSystemMessage(&actor.Watch{})
				m.PostSystemMessage(&actor.Unwatch{})
			}
		}
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for i := range 3 {
			m.PostUserMessage(i + 1)
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait()
		r.check(t, 1, "*actor.Watch", "*actor.Unwatch", 2, 3)
	})
}

func TestMailboxSuspendedKeepsMessages(t *testing.T) {
	r, drops := &recorder{}, &dropLog{}
	inBubble(t, actors.MailboxOptions{OnDrop: drops.onDrop}, r, func(t *testing.T, m *actors.Mailbox) {
		r.onUser = func(message any) {
			if message == 2 { // in the middle of a batch
				m.PostSystemMessage(&actor.SuspendMailbox{})
			}
		}
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for i := range 4 {
			m.PostUserMessage(i + 1)
		}
		synctest.Wait()
		r.check(t)
		if m.Len() != 4 {
			t.Errorf("Len() = %d when suspended before the first of 4", m.Len())
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait()
		r.check(t, 1, 2)
		if m.UserMessageCount() != 2 {
			t.Errorf("UserMessageCount() = %d when suspended after the second of 4", m.UserMessageCount())
		}
		m.PostUserMessage(5)
		m.PostSystemMessage(&actor.Watch{}) // system messages pass
		synctest.Wait()
		r.check(t, 1, 2, "*actor.Watch")
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait()
		r.check(t, 1, 2, "*actor.Watch", 3, 4, 5)
		drops.check(t)
	})
}

// TestMailboxAdmitsSendersInOrder fills a mailbox, parks senders one after the
// other, and lets the actor handle one message at a time: each admits exactly the
// sender that has waited longest.
func TestMailboxAdmitsSendersInOrder(t *testing.T) {
	for _, capacity := range []int{1, 2, 5, 200} {
		t.Run(fmt.Sprint(capacity), func(t *testing.T) {
			gate := make(chan struct{})
			var r *recorder
			synctest.Test(t, func(t *testing.T) {
				gate = make(chan struct{})
				r = &recorder{onUser: func(any) { <-gate }}
				d := actors.NewDispatcher(nil)
				defer d.Close()
				m := actors.NewMailbox(actors.MailboxOptions{Capacity: capacity})
				m.RegisterHandlers(r, d)
				m.Start()

				m.PostUserMessage("in hand")
				synctest.Wait()
				want := []any{"in hand"}
				for i := range capacity {
					m.PostUserMessage(i)
					want = append(want, i)
				}
				const senders = 10
				var returned atomic.Int32
				for i := range senders {
					go func() {
						m.PostUserMessage(capacity + i)
						if n := returned.Add(1); int(n) != i+1 {
							t.Errorf("sender %d was admitted as number %d", i, n-1)
						}
					}()
					synctest.Wait()
					want = append(want, capacity+i)
				}
				for i := range senders {
					if got := returned.Load(); int(got) != i {
						t.Fatalf("%d senders were admitted after %d messages", got, i)
					}
					if m.Len() != capacity {
						t.Fatalf("Len() = %d, want the capacity, %d", m.Len(), capacity)
					}
					gate <- struct{}{}
					synctest.Wait()
				}
				close(gate)
				synctest.Wait()
				r.check(t, want...)
			})
		})
	}
}

// TestMailboxControlMessages fills a mailbox of one from its own actor.
func TestMailboxControlMessages(t *testing.T) {
	r, drops := &recorder{}, &dropLog{}
	isBounded := func(message any) bool { _, isString := message.(string); return isString }
	options := actors.MailboxOptions{Capacity: 1, Bounded: isBounded, OnDrop: drops.onDrop}
	inBubble(t, options, r, func(t *testing.T, m *actors.Mailbox) {
		r.onUser = func(message any) {
			if message != "begin" {
				return
			}
			m.PostUserMessage("bounded")
			for i := range 100 {
				m.PostUserMessage(i)
				m.PostUserMessage(&actor.MessageEnvelope{Message: 1000 + i})
			}
			m.PostUserMessage(&actor.ReceiveTimeout{})
			m.PostUserMessage(&actor.PoisonPill{})
			if m.Len() != 203 {
				t.Errorf("Len() = %d, want 203", m.Len())
			}
		}
		m.PostUserMessage("begin")
		synctest.Wait()
		if len(r.seen) != 204 || r.seen[1] != "bounded" || r.seen[2] != 0 || r.seen[200] != 99 {
			t.Errorf("the actor saw %d messages, want 204 in the order sent: %v", len(r.seen), r.seen)
		}
		if m.Len() != 0 {
			t.Errorf("Len() = %d at the end, want 0", m.Len())
		}
		// There is space for exactly one message again.
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for range 2 {
			go m.PostUserMessage(&actor.MessageEnvelope{Message: "bounded again"})
		}
		synctest.Wait()
		if m.Len() != 1 {
			t.Errorf("Len() = %d where two were sent, want 1", m.Len())
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait()
		drops.check(t)
	})
}

// TestPoisonPillIgnoresCapacity checks that a full mailbox without a Bounded
// function accepts the library's own messages.
func TestPoisonPillIgnoresCapacity(t *testing.T) {
	inBubble(t, actors.MailboxOptions{Capacity: 1}, &recorder{}, func(t *testing.T, m *actors.Mailbox) {
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for i, message := range []any{
			"fills it",
			&actor.PoisonPill{},
			&actor.ReceiveTimeout{},
			&actor.MessageEnvelope{Message: &actor.PoisonPill{}},
		} {
			m.PostUserMessage(message)
			if m.Len() != i+1 {
				t.Errorf("Len() = %d after message %d", m.Len(), i+1)
			}
		}
		go m.PostUserMessage("one more")
		synctest.Wait()
		if m.Len() != 4 {
			t.Errorf("Len() = %d with a sender that waits, want 4", m.Len())
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
	})
}

func TestMailboxPanicDropsOneMessage(t *testing.T) {
	r, drops := &recorder{}, &dropLog{}
	inBubble(t, actors.MailboxOptions{OnDrop: drops.onDrop}, r, func(t *testing.T, m *actors.Mailbox) {
		r.onUser = func(message any) {
			switch message {
			case 2:
				panic("broken")
			case 4:
				runtime.Goexit()
			}
		}
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for i := range 5 {
			m.PostUserMessage(i + 1)
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait()
		r.check(t, 1, 2, "failure of 2: broken", 3,
			4, "failure of 4: actors: handler called runtime.Goexit", 5)
		drops.check(t, "2 panic", "4 panic")
	})
}

// forgetful is an invoker that keeps no message.
type forgetful struct {
	recorder
	handled int
}

func (f *forgetful) InvokeUserMessage(message any) {
	f.handled++
	if f.onUser != nil {
		f.onUser(message)
	}
}

// TestMailboxRetainsNothing checks that a message can be collected once it is
// handled, while others of its batch still wait.
func TestMailboxRetainsNothing(t *testing.T) {
	const messages = 10
	m := actors.NewMailbox(actors.MailboxOptions{})
	f := &forgetful{}
	m.RegisterHandlers(f, actor.NewSynchronizedDispatcher(messages))
	var alive [messages]weak.Pointer[parcel]
	collected := func() (n int) {
		runtime.GC()
		for _, p := range alive {
			if p.Value() == nil {
				n++
			}
		}
		return n
	}
	f.onUser = func(any) {
		if n := collected(); n != f.handled-1 {
			t.Errorf("%d messages collected while number %d is handled", n, f.handled)
		}
	}
	for i := range messages {
		p := &parcel{number: i}
		alive[i] = weak.Make(p)
		m.PostUserMessage(p)
	}
	m.Start()
	if n := collected(); n != messages {
		t.Errorf("%d messages collected at the end, want %d", n, messages)
	}
	runtime.KeepAlive(m)
}

func TestMailboxNilMessage(t *testing.T) {
	r := &recorder{}
	inBubble(t, actors.MailboxOptions{}, r, func(t *testing.T, m *actors.Mailbox) {
		m.PostUserMessage(1)
		m.PostUserMessage(nil)
		m.PostUserMessage(2)
		synctest.Wait()
		r.check(t, 1, nil, 2)
	})
}

// TestMailboxStop stops an actor that blocks in the middle of a batch, while senders
// wait for space.
func TestMailboxStop(t *testing.T) {
	r, drops := &recorder{}, &dropLog{}
	options := actors.MailboxOptions{Capacity: 3, OnDrop: drops.onDrop}
	inBubble(t, options, r, func(t *testing.T, m *actors.Mailbox) {
		r.onUser = func(any) { m.PostSystemMessage(&actor.SuspendMailbox{}) }
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for i := range 3 {
			m.PostUserMessage(i + 1)
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
		synctest.Wait() // 1 was handled; 2 and 3 are in its batch
		m.PostUserMessage(4)
		for i := range 2 {
			go m.PostUserMessage(5 + i)
			synctest.Wait()
		}
		m.PostSystemMessage(&actor.Stop{})
		synctest.Wait()
		drops.sort() // the senders report beside the actor
		want := []string{"2 stopped", "3 stopped", "4 stopped", "5 closed", "6 closed"}
		drops.check(t, want...)
		m.PostUserMessage(&actor.MessageEnvelope{Message: 8})
		m.PostSystemMessage(&actor.ResumeMailbox{})
		m.PostSystemMessage(&actor.Watch{})
		synctest.Wait()
		drops.check(t, append(want, "8 closed")...)
		r.check(t, 1, "*actor.Stop", "*actor.Watch")
		if m.Len() != 0 {
			t.Errorf("Len() = %d, want 0", m.Len())
		}
	})
}

// spawnInline starts an actor that handles each message on the goroutine that
// sends it, so that a test sees the result when a send returns.
func spawnInline(system *actor.ActorSystem, options actors.MailboxOptions, receive actor.ReceiveFunc) (*actor.PID, *actors.Mailbox) {
	mailbox := actors.NewMailbox(options)
	pid := system.Root.Spawn(actor.PropsFromFunc(receive,
		actor.WithDispatcher(actor.NewSynchronizedDispatcher(300)),
		actor.WithMailbox(func() actor.Mailbox { return mailbox })))
	return pid, mailbox
}

// lifecycle records the messages that an actor gets, except those without meaning
// for the tests.
func lifecycle(seen *[]string, also func(actor.Context)) actor.ReceiveFunc {
	return func(c actor.Context) {
		if text, ok := c.Message().(string); ok {
			*seen = append(*seen, text)
		} else {
			*seen = append(*seen, fmt.Sprintf("%T", c.Message()))
		}
		if also != nil {
			also(c)
		}
	}
}

func checkSeen(t *testing.T, got []string, want ...string) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the actor saw (-want +got):\n%s", diff)
	}
}

func TestPoisonPillDropsLaterMessages(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	var seen []string
	pid, m := spawnInline(system, actors.MailboxOptions{OnDrop: drops.onDrop}, lifecycle(&seen, nil))
	m.PostSystemMessage(&actor.SuspendMailbox{})
	system.Root.Send(pid, "ahead")
	system.Root.Poison(pid)
	system.Root.Send(pid, "behind")
	system.Root.RequestWithCustomSender(pid, "enveloped", pid)
	m.PostSystemMessage(&actor.ResumeMailbox{})
	checkSeen(t, seen, "*actor.Started", "ahead", "*actor.Stopping", "*actor.Stopped")
	drops.check(t, "behind stopped", "enveloped stopped")
	m.PostUserMessage("late")
	drops.check(t, "behind stopped", "enveloped stopped", "late closed")
}

// TestMailboxDropsBeforeStopped checks that all drops of waiting messages are
// reported before Stopped.
func TestMailboxDropsBeforeStopped(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	reported := -1
	pid, m := spawnInline(system, actors.MailboxOptions{OnDrop: drops.onDrop}, func(c actor.Context) {
		if _, ok := c.Message().(*actor.Stopped); ok {
			reported = len(drops.drops)
		}
	})
	m.PostSystemMessage(&actor.SuspendMailbox{})
	for i := range 100 {
		m.PostUserMessage(i)
	}
	system.Root.Stop(pid)
	if reported != 100 {
		t.Errorf("%d drops were reported before Stopped, want 100", reported)
	}
}

// TestMailboxStoppingParentServesItsChildren stops an actor whose child sends
// messages to it before the child stops.
func TestMailboxStoppingParentServesItsChildren(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	var seen []string
	child := actor.PropsFromFunc(func(c actor.Context) {
		if _, ok := c.Message().(*actor.Stopping); ok {
			for i := range 5 { // more than the parent's mailbox holds
				c.Send(c.Parent(), fmt.Sprint("from the child ", i))
			}
		}
	})
	options := actors.MailboxOptions{Capacity: 2, OnDrop: drops.onDrop}
	mailbox := actors.NewMailbox(options)
	parent := system.Root.Spawn(actor.PropsFromFunc(lifecycle(&seen, func(c actor.Context) {
		switch c.Message().(type) {
		case *actor.Started:
			c.Spawn(child)
		case *actor.Terminated:
			c.Send(c.Self(), "answer to the last Terminated")
		}
	}), actor.WithMailbox(func() actor.Mailbox { return mailbox })))
	if err := system.Root.StopFuture(parent).Wait(); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(seen, "from the child 0") {
		t.Errorf("a stopping parent did not handle its child's message: %v", seen)
	}
	if got := seen[len(seen)-1]; got != "*actor.Stopped" {
		t.Errorf("the parent saw %s last, want Stopped", got)
	}
	if !slices.Contains(drops.drops, "answer to the last Terminated closed") {
		t.Errorf("the message sent after the last child's end was not reported: %v", drops.drops)
	}
	fromChild := 0
	for _, text := range slices.Concat(seen, drops.drops) {
		var i int
		if n, _ := fmt.Sscanf(text, "from the child %d", &i); n == 1 {
			fromChild++
		}
	}
	if fromChild != 5 {
		t.Errorf("%d of 5 messages of the child are accounted for: %v %v", fromChild, seen, drops.drops)
	}
}

// TestMailboxRestartKeepsTheQueue lets an actor fail in the middle of its queue.
func TestMailboxRestartKeepsTheQueue(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	var seen []string
	pid, m := spawnInline(system, actors.MailboxOptions{OnDrop: drops.onDrop}, lifecycle(&seen, func(c actor.Context) {
		if c.Message() == "bad" {
			panic("broken")
		}
	}))
	m.PostSystemMessage(&actor.SuspendMailbox{})
	for _, text := range []string{"a", "bad", "b", "c"} {
		system.Root.Send(pid, text)
	}
	m.PostSystemMessage(&actor.ResumeMailbox{})
	checkSeen(t, seen, "*actor.Started", "a", "bad", "*actor.Restarting", "*actor.Started", "b", "c")
	drops.check(t, "bad panic")
}

// TestMailboxRestartAfterTheEnd checks that a restart does not start an ended actor.
func TestMailboxRestartAfterTheEnd(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	var seen []string
	options := actors.MailboxOptions{OnDrop: drops.onDrop}
	pid, m := spawnInline(system, options, lifecycle(&seen, nil))
	system.Root.Stop(pid)
	// The name is free again, and taken by another actor at once.
	if _, err := system.Root.SpawnNamed(actor.PropsFromFunc(func(actor.Context) {}), pid.Id); err != nil {
		t.Fatal(err)
	}
	m.PostSystemMessage(&actor.Restart{})
	m.PostUserMessage("late")
	checkSeen(t, seen, "*actor.Started", "*actor.Stopping", "*actor.Stopped")
	drops.check(t, "late closed")
}

// TestMailboxRestartOvertakesStop lets an actor fail on its Stopping: the
// library restarts it and forgets the stop, and the mailbox has to open again.
func TestMailboxRestartOvertakesStop(t *testing.T) {
	system, drops := quietSystem(), &dropLog{}
	var seen []string
	failed := false
	pid, m := spawnInline(system, actors.MailboxOptions{OnDrop: drops.onDrop}, lifecycle(&seen, func(c actor.Context) {
		if _, ok := c.Message().(*actor.Stopping); ok && !failed {
			failed = true
			panic("broken")
		}
	}))
	system.Root.Stop(pid)
	m.PostUserMessage("after the restart")
	system.Root.Stop(pid)
	m.PostUserMessage("late")
	checkSeen(t, seen, "*actor.Started", "*actor.Stopping", "*actor.Restarting", "*actor.Started",
		"after the restart", "*actor.Stopping", "*actor.Stopped")
	drops.check(t, "late closed")
}

func TestMailboxCapacity(t *testing.T) {
	for capacity, refused := range map[int]bool{0: false, 1: false, actors.MaxMailboxCapacity: false, -1: true, actors.MaxMailboxCapacity + 1: true} {
		func() {
			defer func() {
				if panicked := recover() != nil; panicked != refused {
					t.Errorf("a capacity of %d is refused: %v, want %v", capacity, panicked, refused)
				}
			}()
			actors.NewMailbox(actors.MailboxOptions{Capacity: capacity})
		}()
	}
	inBubble(t, actors.MailboxOptions{}, &recorder{}, func(t *testing.T, m *actors.Mailbox) {
		m.PostSystemMessage(&actor.SuspendMailbox{})
		for range actors.DefaultMailboxCapacity + 1 {
			go m.PostUserMessage(0)
		}
		synctest.Wait()
		if m.Len() != actors.DefaultMailboxCapacity {
			t.Errorf("Len() = %d, want the default capacity", m.Len())
		}
		m.PostSystemMessage(&actor.ResumeMailbox{})
	})
}

func TestDropReasonString(t *testing.T) {
	for reason, want := range map[actors.DropReason]string{
		actors.DropPanic: "panic", actors.DropStopped: "stopped", actors.DropClosed: "closed", 9: "DropReason(9)",
	} {
		if got := reason.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
}

// parcel is a message of the accounting test.
type parcel struct{ sender, number int }

// fates counts how often each parcel was handled, dropped or made a dead letter.
type fates struct {
	each                         [][]atomic.Int32 // by sender and number
	handled, dropped, deadLetter atomic.Int64
	last                         []atomic.Int64 // by sender, the last number handled
}

func newFates(senders, each int) *fates {
	f := &fates{each: make([][]atomic.Int32, senders), last: make([]atomic.Int64, senders)}
	for i := range f.each {
		f.each[i] = make([]atomic.Int32, each)
		f.last[i].Store(-1)
	}
	return f
}

func (f *fates) note(p *parcel, kind *atomic.Int64) {
	kind.Add(1)
	f.each[p.sender][p.number].Add(1)
}

// handle counts p as handled, and reports whether it came in order.
func (f *fates) handle(p *parcel) bool {
	f.note(p, &f.handled)
	return f.last[p.sender].Swap(int64(p.number)) < int64(p.number)
}

// accountingSends is how many messages each run of TestMailboxAccounting sends.
const accountingSends = 12_000

// trouble lists the faults in a run of TestMailboxAccounting. A number that is not
// zero is the message of the fault, or the period of messages with the fault.
type trouble struct {
	stopAt, poisonAt      int // the actor stops itself
	panicEvery, exitEvery int // the handler panics, or ends its goroutine
	directive             actor.Directive
}

// ends reports whether the actor stops during the run.
func (tr trouble) ends() bool { return tr.stopAt+tr.poisonAt > 0 }

// make causes the faults of the n-th message.
func (tr trouble) make(c actor.Context, n int) {
	switch n {
	case tr.stopAt:
		c.Stop(c.Self())
	case tr.poisonAt:
		c.Poison(c.Self())
	}
	if tr.exitEvery > 0 && n%tr.exitEvery == 0 {
		runtime.Goexit()
	}
	if tr.panicEvery > 0 && n%tr.panicEvery == 0 {
		panic("broken")
	}
}

// TestMailboxAccounting sends to actors that meanwhile stop, are poisoned, panic and
// restart, and checks that each message was handled, dropped with a report, or made
// a dead letter by the library: exactly one of these, and once.
func TestMailboxAccounting(t *testing.T) {
	const restart, resume = actor.RestartDirective, actor.ResumeDirective
	tests := []struct {
		name    string
		trouble trouble
	}{
		{name: "calm"},
		{name: "stopped", trouble: trouble{stopAt: 3000}},
		{name: "poisoned", trouble: trouble{poisonAt: 3000}},
		{name: "restarted", trouble: trouble{panicEvery: 97, directive: restart}},
		{name: "resumed", trouble: trouble{panicEvery: 97, directive: resume}},
		{name: "exited", trouble: trouble{exitEvery: 97, directive: restart}},
		{name: "restarted and stopped", trouble: trouble{panicEvery: 97, stopAt: 97 * 31, directive: restart}},
		{name: "restarted and poisoned", trouble: trouble{panicEvery: 97, poisonAt: 3000, directive: restart}},
		{name: "stopped by its supervisor", trouble: trouble{panicEvery: 3000, directive: actor.StopDirective}},
	}
	for _, tt := range tests {
		for _, capacity := range []int{1, 3, 64, 1024} {
			t.Run(fmt.Sprintf("%s/%d", tt.name, capacity), func(t *testing.T) {
				accountFor(t, capacity, tt.trouble)
			})
		}
	}
}

// accountFor runs four senders against one actor.
func accountFor(t *testing.T, capacity int, tr trouble) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	const senders, each = 4, accountingSends / 4
	f := newFates(senders, each)
	system := quietSystem()
	dispatcher := actors.NewDispatcher(nil)
	defer dispatcher.Close()
	system.EventStream.Subscribe(f.deadLetters)
	m := actors.NewMailbox(actors.MailboxOptions{Capacity: capacity, OnDrop: f.drop})
	n := 0
	receive := func(c actor.Context) {
		p, ok := c.Message().(*parcel)
		if !ok {
			return
		}
		n++
		tr.make(c, n)
		if !f.handle(p) {
			t.Errorf("%v was overtaken by a later message of its sender", *p)
		}
	}
	decide := func(any) actor.Directive { return tr.directive }
	pid := system.Root.Spawn(actor.PropsFromFunc(receive,
		actor.WithDispatcher(dispatcher),
		actor.WithMailbox(func() actor.Mailbox { return m }),
		actor.WithGuardian(actor.NewOneForOneStrategy(accountingSends, 0, decide))))

	var group sync.WaitGroup
	for s := range senders {
		send := m.PostUserMessage
		if s%2 == 0 {
			send = func(message any) { system.Root.Send(pid, message) }
		}
		group.Go(func() {
			for i := range each {
				send(&parcel{sender: s, number: i})
			}
		})
	}
	group.Wait()
	if err := system.Root.PoisonFuture(pid).Wait(); err != nil {
		t.Fatalf("stop: %v", err)
	}
	f.check(t)
	if !tr.ends() && tr.directive != actor.StopDirective {
		failures := 0
		if every := tr.panicEvery + tr.exitEvery; every > 0 {
			failures = accountingSends / every
		}
		if got := f.dropped.Load(); got != int64(failures) {
			t.Errorf("%d messages dropped, want the %d that failed", got, failures)
		}
	}
}

func (f *fates) drop(message any, _ actors.DropReason) {
	if p, ok := message.(*parcel); ok {
		f.note(p, &f.dropped)
	}
}

func (f *fates) deadLetters(event any) {
	if letter, ok := event.(*actor.DeadLetterEvent); ok {
		if p, ok := letter.Message.(*parcel); ok {
			f.note(p, &f.deadLetter)
		}
	}
}

func (f *fates) check(t *testing.T) {
	t.Helper()
	for s := range f.each {
		for i := range f.each[s] {
			if n := f.each[s][i].Load(); n != 1 {
				t.Fatalf("message %d of sender %d was accounted for %d times", i, s, n)
			}
		}
	}
	sent := int64(len(f.each) * len(f.each[0]))
	if sum := f.handled.Load() + f.dropped.Load() + f.deadLetter.Load(); sum != sent {
		t.Errorf("handled %d + dropped %d + dead letters %d = %d, sent %d",
			f.handled.Load(), f.dropped.Load(), f.deadLetter.Load(), sum, sent)
	}
	t.Logf("sent %d: handled %d, dropped %d, dead letters %d",
		sent, f.handled.Load(), f.dropped.Load(), f.deadLetter.Load())
}
