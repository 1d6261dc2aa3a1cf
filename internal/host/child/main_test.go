package child

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// roleVariable makes the test binary play a child instead of running tests.
const roleVariable = "OMNIBUS_CHILD_TEST_ROLE"

// patience bounds a wait for something that must happen. Nothing is measured
// by it.
const patience = 30 * time.Second

var roles = map[string]func(args []string){
	"print": func(args []string) { // what it is told, then the end
		_, _ = os.Stdout.WriteString(strings.Join(args, ""))
	},
	"both": func(args []string) { // the same on both streams
		for range 100 {
			fmt.Fprintln(os.Stdout, args[0])
			fmt.Fprintln(os.Stderr, args[0])
		}
	},
	"exit": func(args []string) {
		fmt.Fprintln(os.Stderr, "last words")
		code, _ := strconv.Atoi(args[0])
		os.Exit(code)
	},
	"idle": func([]string) { // ends by SIGTERM, with status 0
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "up")
		<-term
		fmt.Fprintln(os.Stdout, "bye")
	},
	"deaf": func([]string) { // ignores SIGTERM
		signal.Ignore(syscall.SIGTERM)
		fmt.Fprintln(os.Stdout, "up")
		select {}
	},
	"flood": func(args []string) {
		n, _ := strconv.Atoi(args[0])
		var text bytes.Buffer
		for i := range n {
			fmt.Fprintf(&text, "line %d\n", i)
		}
		_, _ = os.Stdout.Write(text.Bytes())
	},
	"longline": func(args []string) {
		n, _ := strconv.Atoi(args[0])
		_, _ = os.Stdout.Write(append(bytes.Repeat([]byte("x"), n), '\n'))
	},
}

func TestMain(m *testing.M) {
	if role, ok := roles[os.Getenv(roleVariable)]; ok {
		// While signals are waited for, the runtime does not take an empty select
		// for a deadlock.
		signal.Notify(make(chan os.Signal, 1), os.Interrupt)
		role(os.Args[1:])
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// play returns the spec of a child that plays a role.
func play(t *testing.T, role string, args ...string) Spec {
	t.Helper()
	if roles[role] == nil {
		t.Fatalf("there is no role %q", role)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Spec{
		Name: role,
		Args: append([]string{self}, args...),
		// The race detector lets a process sleep for a second before it ends.
		Env:     []string{roleVariable + "=" + role, "GORACE=atexit_sleep_ms=0"},
		Restart: Never,
	}
}

// A rig is a manager with what it says and what its children print.
type rig struct {
	*Manager
	t      *testing.T
	events chan Event
	over   chan string // the names of children that have ended
	gone   map[string]bool
	tape   *tape
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, events: make(chan Event, 1000), over: make(chan string, 100), gone: map[string]bool{}, tape: &tape{changed: make(chan struct{})}}
	r.Manager = New(Options{Out: r.tape, OnEvent: func(e Event) {
		r.events <- e
		if e.Last() {
			r.over <- e.Name
		}
	}})
	t.Cleanup(func() {
		// The context of the test is over by now: no grace.
		if err := r.Close(t.Context()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// start starts a child, or fails the test.
func (r *rig) start(s Spec) *Child {
	r.t.Helper()
	c, err := r.Start(s)
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// next returns the next event, which must be of that kind.
func (r *rig) next(kind Kind) Event {
	r.t.Helper()
	select {
	case e := <-r.events:
		if e.Kind != kind {
			r.t.Fatalf("event %q, want %s", e, kind)
		}
		return e
	case <-time.After(patience):
		r.t.Fatalf("no event, want %s", kind)
		panic("unreachable")
	}
}

// ended waits until a child has ended.
func (r *rig) ended(c *Child) {
	r.t.Helper()
	for !r.gone[c.Name()] {
		select {
		case name := <-r.over:
			r.gone[name] = true
		case <-time.After(patience):
			r.t.Fatalf("%s does not end: %+v", c.Name(), c.Status())
		}
	}
}

// A tape records what is written, and lets a test wait for it.
type tape struct {
	mu      sync.Mutex
	text    strings.Builder
	changed chan struct{} // closed and replaced by each write
}

func (p *tape) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return p.text.Write(text)
}

func (p *tape) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

// wait waits until the text has been written.
func (p *tape) wait(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(patience)
	for {
		p.mu.Lock()
		text, changed := p.text.String(), p.changed
		p.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatalf("%q was not printed; this was:\n%s", want, text)
		}
	}
}
