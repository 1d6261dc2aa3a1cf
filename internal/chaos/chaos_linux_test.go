package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
)

const (
	// stallTimeout is how long a process may be stopped with work.
	stallTimeout = 300 * time.Millisecond
	// patience bounds every wait for an event that must happen. It is far longer
	// than any such event takes.
	patience = time.Minute
	// pollPause is the pause between two polls of another process's state.
	pollPause = 200 * time.Microsecond
	// maxViolations bounds the report of a run that goes wrong.
	maxViolations = 10
)

// TestChaos kills the processes of stages and callers under load.
func TestChaos(t *testing.T) {
	kills := *wantKills
	if testing.Short() {
		kills = min(kills, 10)
	}
	s := seed(t)
	before := takeInventory(t)
	c := openRun(t, s, relayed(), 1+kills/200)
	c.startAll()
	c.killUntil(random(s, 1), kills)
	c.shutDown()
	before.compare(t)
	c.report()
}

// run is a bus whose processes are being killed, and the test's record of them.
type run struct {
	t        *testing.T
	scenario scenario
	ctx      context.Context // ends when the run is given up
	giveUp   context.CancelCauseFunc
	bus      *bus.Bus
	server   *host.Server
	socket   string
	faults   *faults
	log      tail

	stages     sync.WaitGroup // goroutines that restart processes of stages
	submitters sync.WaitGroup // goroutines that restart submitters, or submit from this process
	reclaims   sync.WaitGroup
	completed  atomic.Int64 // requests that callers reported complete

	mu          sync.Mutex
	children    map[int]*child
	heldAtDeath map[int]holding // what a victim held when the host found it dead or stuck
	resume      map[int]bool    // by process: whether a stuck process is continued; otherwise it is killed
	victims     map[int]bool    // processes that were killed or stopped
	failures    []string        // error texts of requests that failed
	noSubmit    bool            // no new submitters are started
	noStages    bool            // ... and no new processes of stages
	counted     int             // kills at random moments that count
	atPoints    int             // kills at named points
	uncounted   int             // kills of victims that held nothing
	stops       int
	violations  []string
	teardown    samples // from SIGKILL to the pidfd
	reclaiming  samples // from there until everything is reclaimed
}

// holding is what a process holds, by the host's accounts: counts of deliveries, payloads, requests and
// direct streams.
type holding struct{ deliveries, payloads, requests, direct int }

func (h holding) any() bool { return h.deliveries > 0 || h.payloads > 0 }

// worth reports whether the death of a process with this holding counts. Of
// deliveries on the direct path the host knows only the streams.
func (c *run) worth(r role, h holding) bool {
	if c.scenario.mayFail && r.python == "" {
		return h.direct > 0
	}
	return h.any()
}

func openRun(t *testing.T, seed uint64, sc scenario, timesEach int) *run {
	t.Helper()
	c := &run{
		t: t, scenario: sc, socket: filepath.Join(t.TempDir(), "bus.sock"), faults: newFaults(sc.roles, timesEach, random(seed, 2)),
		children: make(map[int]*child), heldAtDeath: make(map[int]holding), resume: make(map[int]bool), victims: make(map[int]bool),
	}
	c.ctx, c.giveUp = context.WithCancelCause(context.Background())
	opts := sc.options
	opts.OnStall = func([]bus.Stall) {} // the run reports stalls when one of its own waits times out
	opts.Logger = slog.New(slog.NewTextHandler(&c.log, nil))
	var err error
	if c.bus, err = bus.Open(t.Context(), sc.pipeline, opts); err != nil {
		t.Fatal(err)
	}
	if c.server, err = host.Listen(c.bus, c.socket, host.ListenOptions{Autopsy: c.autopsy, OnStuck: c.stuck}); err != nil {
		t.Fatal(err)
	}
	return c
}

// startAll starts all processes, and the submitters of this process.
func (c *run) startAll() {
	for _, r := range c.scenario.roles {
		group := &c.stages
		if r.stage == "" {
			group = &c.submitters
		}
		group.Go(func() { c.keepAlive(r) })
	}
	var tags tags
	for range c.scenario.hostRequests {
		c.submitters.Go(func() {
			for i := 0; !c.stopped("") && c.ctx.Err() == nil; i++ {
				err := c.scenario.roundTrip(c.ctx, c.bus, tags.next(), i)
				switch {
				case err == nil || c.ctx.Err() != nil:
					c.completed.Add(1)
				case c.scenario.mayFail && died(err):
					c.addFailure(err.Error())
				default:
					c.violationf("a request of the host's own: %v", err)
				}
			}
		})
	}
}

// keepAlive runs the processes of a role, one after the other.
func (c *run) keepAlive(r role) {
	for !c.stopped(r.stage) && c.ctx.Err() == nil {
		fault := c.faults.next(r.name)
		ch, err := start(r, c.socket, fault, c.handleLine)
		if err != nil {
			c.giveUp(err)
			return
		}
		c.mu.Lock()
		c.children[ch.pid()] = ch
		c.mu.Unlock()
		<-ch.dead
		c.reclaims.Go(func() { c.recordDeath(ch) })
	}
}

// stopped reports whether no new process of a stage, or submitter, is wanted.
func (c *run) stopped(stage string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if stage == "" {
		return c.noSubmit
	}
	return c.noStages
}

// handleLine records a line that a submitter printed.
func (c *run) handleLine(line string) {
	if strings.HasPrefix(line, "done ") {
		c.completed.Add(1)
	} else if text, ok := strings.CutPrefix(line, "failed "); ok {
		c.addFailure(text)
	} else if text, ok := strings.CutPrefix(line, "broken "); ok {
		c.violationf("a submitter: %s", text)
	}
}

// addFailure records a request that failed because a process died: see checkFailed.
func (c *run) addFailure(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failures = append(c.failures, text)
}

// violationf records a violation of a promise. After maxViolations it ends the run.
func (c *run) violationf(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.violations = append(c.violations, fmt.Sprintf(format, args...))
	if len(c.violations) >= maxViolations {
		c.giveUp(errors.New("too much is broken"))
	}
}

// holding returns what a process holds by the host's accounts, and whether it is attached.
func (c *run) holding(pid int) (h holding, attached bool) {
	for _, p := range c.server.Processes() {
		if p.PID != pid {
			continue
		}
		attached = true
		h.deliveries += p.Held
		h.payloads += p.Arena.Payloads
		h.requests += p.Requests
		h.direct += p.Direct
	}
	return h, attached
}

// autopsy is called when the host has noticed a death, before the host reclaims
// anything.
func (c *run) autopsy(pid int) string {
	c.note(pid)
	return "killed by the test"
}

func (c *run) note(pid int) {
	h, _ := c.holding(pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.heldAtDeath[pid] = h
}

// stuck kills a stopped process, as a host does with its own children, or
// continues it; a continued process finds its connection closed.
func (c *run) stuck(pid int, _ error) {
	c.note(pid)
	c.mu.Lock()
	ch, resume := c.children[pid], c.resume[pid]
	c.mu.Unlock()
	switch {
	case ch == nil:
	case resume:
		ch.excused.Store(true)
		ch.signal(contSignal)
	default:
		ch.kill()
	}
}

// recordDeath waits until everything that a dead process held is reclaimed, and
// records its death.
func (c *run) recordDeath(ch *child) {
	defer func() {
		c.mu.Lock()
		delete(c.children, ch.pid())
		c.mu.Unlock()
	}()
	reclaimed := c.until("everything that process %d held to be reclaimed", func() bool {
		_, attached := c.holding(ch.pid())
		return !attached
	}, ch.pid())
	took := time.Since(ch.diedAt)
	<-ch.done
	c.mu.Lock()
	had, attended := c.heldAtDeath[ch.pid()]
	c.mu.Unlock()

	byTest := ch.killedAt.Load() != 0
	if ch.killed() || ch.excused.Load() {
		c.mu.Lock()
		c.victims[ch.pid()] = true
		c.mu.Unlock()
	}
	switch {
	case ch.err == nil && c.stopped(ch.role.stage), ch.excused.Load():
		c.faults.putBack(ch.role.name, ch.fault)
		return
	case !ch.killed() || (!byTest && ch.fault == ""):
		c.violationf("%s (process %d) ended by itself: %v\n%s", ch.role.name, ch.pid(), ch.err, ch.stderr.String())
		return
	case byTest:
		c.faults.putBack(ch.role.name, ch.fault)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if byTest {
		c.teardown = append(c.teardown, ch.diedAt.Sub(time.Unix(0, ch.killedAt.Load())))
	}
	switch {
	case !byTest:
		c.atPoints++
	case !attended || !c.worth(ch.role, had):
		c.uncounted++
		return
	default:
		c.counted++
	}
	if reclaimed {
		c.reclaiming = append(c.reclaiming, took)
	}
}

// until waits until ok returns true. After patience it records a violation, ends
// the run and reports false.
func (c *run) until(what string, ok func() bool, args ...any) bool {
	for limit := time.Now().Add(patience); !ok(); time.Sleep(pollPause) {
		if c.ctx.Err() != nil {
			return false
		}
		if time.Now().After(limit) {
			what = fmt.Sprintf(what, args...)
			c.violationf("waited %v for %s\n%s", patience, what, c.state())
			c.giveUp(errors.New(what))
			return false
		}
	}
	return true
}

// state describes the host's status, its stalls and its log, for a report.
func (c *run) state() string {
	status := c.server.Status()
	status.Stats.Edges, status.Stats.Stages = nil, nil
	text, err := json.MarshalIndent(status, "", " ")
	return fmt.Sprintf("%s %v\nstalls: %v\nholdings: %+v\nlog: %s", text, err, c.bus.Stalls(0), c.server.Holdings(), c.log.String())
}
