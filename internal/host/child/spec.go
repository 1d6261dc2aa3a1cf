package child

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
)

// A Policy says which processes are restarted after they end.
type Policy string

// The policies.
const (
	Always    Policy = "always"     // with any exit status; the default
	OnFailure Policy = "on-failure" // all except those that end with status 0
	Never     Policy = "never"
)

// A Spec says what to run. Name and Args are needed.
type Spec struct {
	// Name stands before each line of output and in errors, such as "talker/0".
	Name string
	// Args is the program and its arguments. A program without a slash is looked up in the PATH of the
	// new process; a relative path starts from Dir.
	Args []string
	// Env are additions to the environment of the host, as KEY=VALUE. The last entry of a key counts.
	Env []string
	// Dir is the working directory; empty: the host's.
	Dir string

	Restart Policy
	Backoff Backoff
	// Grace is the time between SIGTERM and SIGKILL; default 5 s. A process that was told to leave has
	// a fifth of it before SIGTERM, 10 s at most.
	Grace time.Duration
	// StartTimeout is how long a process may take until Ready is called for it, before it is killed;
	// default 30 s.
	StartTimeout time.Duration
}

// Backoff says how long to wait before a restart, and when to give up.
type Backoff struct {
	First  time.Duration // the first pause; default 200 ms
	Factor float64       // factor from each pause to the next; default 2
	Max    time.Duration // the longest pause; default 10 s
	// Reset is how long a process that became ready must have run for its restart to begin with the
	// first pause again; default 30 s.
	Reset time.Duration
	// Limit is the number of restarts within Window after which the next failure is the last; default
	// 5. The same number of restarts in a row without a process that became ready is also the last,
	// however long they took. Negative: no limit.
	Limit  int
	Window time.Duration // default 1 min
}

func (b Backoff) withDefaults() Backoff {
	b.First = orDefault(b.First, 200*time.Millisecond)
	b.Factor = orDefault(b.Factor, 2)
	b.Max = orDefault(b.Max, max(b.First, 10*time.Second))
	b.Reset = orDefault(b.Reset, 30*time.Second)
	b.Limit = orDefault(b.Limit, 5)
	b.Window = orDefault(b.Window, time.Minute)
	return b
}

// MaxLimit bounds Backoff.Limit: the times of that many restarts are kept.
const MaxLimit = 1000

func (b Backoff) validate() error {
	switch {
	case b.First < 0 || b.Max < b.First:
		return fmt.Errorf("the first pause %v must be positive and at most the longest, %v", b.First, b.Max)
	case !(b.Factor >= 1): // refuses NaN
		return fmt.Errorf("the factor %v must be at least 1", b.Factor)
	case b.Reset < 0 || b.Window < 0:
		return fmt.Errorf("the reset time %v and the window %v must not be negative", b.Reset, b.Window)
	case b.Limit > MaxLimit:
		return fmt.Errorf("the limit %d must be at most %d; a negative one means none", b.Limit, MaxLimit)
	}
	return nil
}

func (s Spec) withDefaults() Spec {
	s.Restart = orDefault(s.Restart, Always)
	s.Backoff = s.Backoff.withDefaults()
	s.Grace = orDefault(s.Grace, 5*time.Second)
	s.StartTimeout = orDefault(s.StartTimeout, 30*time.Second)
	return s
}

// leaveWait is how long a process that was told to leave has before SIGTERM. Most processes need some
// milliseconds.
func (s Spec) leaveWait() time.Duration { return min(s.Grace/5, 10*time.Second) }

func orDefault[T comparable](v, instead T) T {
	var zero T
	if v == zero {
		return instead
	}
	return v
}

func (s Spec) validate() error {
	unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
	if s.Name == "" || strings.ContainsFunc(s.Name, unprintable) {
		return fmt.Errorf("child: the name %q must be one line of printable text", s.Name)
	}
	if err := s.problem(); err != nil {
		return fmt.Errorf("child: %s: %w", s.Name, err)
	}
	return nil
}

func (s Spec) problem() error {
	if len(s.Args) == 0 || s.Args[0] == "" {
		return errors.New("the command line is empty: name a program")
	}
	for _, entry := range s.Env {
		if strings.IndexByte(entry, '=') < 1 {
			return fmt.Errorf("the environment entry %q must be KEY=VALUE", entry)
		}
	}
	switch s.Restart {
	case Always, OnFailure, Never:
	default:
		return fmt.Errorf("unknown restart policy %q: use %s, %s or %s", s.Restart, Always, OnFailure, Never)
	}
	if s.Grace < 0 || s.StartTimeout < 0 {
		return fmt.Errorf("the grace %v and the start timeout %v must not be negative", s.Grace, s.StartTimeout)
	}
	return s.Backoff.validate()
}
