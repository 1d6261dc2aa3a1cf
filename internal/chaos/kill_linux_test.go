package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/omnibus-runtime/omnibus/bus/node"
)

const (
	stopSignal = syscall.SIGSTOP
	contSignal = syscall.SIGCONT

	// One victim in stopOneIn is stopped first.
	stopOneIn = 12
	// maxKillPause is the longest pause between two kills.
	maxKillPause = 40 * time.Millisecond
	// maxBusyWait is how long a victim is watched for a moment when it has
	// something.
	maxBusyWait = 100 * time.Millisecond
)

// leastKills are enough when the time is over, which is for machines where processes
// take long to start.
const leastKills = 20

// manyTimes as many kills as are wanted, and processes would have come to every place that they
// can come to.
const manyTimes = 10

// killUntil kills until enough kills count, at random moments and at all places
// that were planned.
func (c *run) killUntil(r *rand.Rand, kills int) {
	last, moved := int64(0), time.Now()
	for began := moved; c.ctx.Err() == nil && !c.enoughKills(kills); {
		if *killTime > 0 && time.Since(began) >= *killTime {
			kills = min(kills, leastKills)
		}
		if done := c.kills(); done > manyTimes*max(kills, leastKills) {
			c.violationf("after %d kills processes have yet to come to these places, of those at rest: %s", done, c.faults.list())
			return
		}
		if now := c.completed.Load(); now != last {
			last, moved = now, time.Now()
		} else if time.Since(moved) > patience {
			c.violationf("no request has ended for %v\n%s", patience, c.state())
			c.giveUp(fmt.Errorf("nothing moves"))
			return
		}
		time.Sleep(time.Duration(r.Int64N(int64(c.scenario.maxPause)))) // any moment will do
		victim := c.choose(r)
		if victim == nil || !c.awaitBusy(victim) {
			continue
		}
		if r.IntN(stopOneIn) == 0 {
			c.stop(victim, r.IntN(2) == 0)
		} else {
			victim.kill()
		}
	}
}

// kills are those that count.
func (c *run) kills() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
}

// enoughKills reports whether there has been enough.
func (c *run) enoughKills(kills int) bool {
	open := c.faults.remaining()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.children {
		if ch.fault != "" {
			open++
		}
	}
	return c.counted >= kills && open == 0
}

// choose picks a process, seldom one that is going to kill itself.
func (c *run) choose(r *rand.Rand) *child {
	c.mu.Lock()
	defer c.mu.Unlock()
	var alive []*child
	for _, ch := range c.children {
		if !closed(ch.dead) && (ch.fault == "" || r.IntN(4) == 0) {
			alive = append(alive, ch)
		}
	}
	if len(alive) == 0 {
		return nil
	}
	slices.SortFunc(alive, func(a, b *child) int { return a.pid() - b.pid() })
	return alive[r.IntN(len(alive))]
}

// awaitBusy waits for a moment when the victim has something.
func (c *run) awaitBusy(victim *child) bool {
	for limit := time.Now().Add(maxBusyWait); time.Now().Before(limit); time.Sleep(pollPause) {
		if h, _ := c.holding(victim.pid()); c.worth(victim.role, h) {
			return true
		}
	}
	return false
}

// stop stops a process until the host takes it for stuck, which kills it or
// wakes it. One that turns out to have had nothing to do is woken.
func (c *run) stop(victim *child, resume bool) {
	c.mu.Lock()
	c.stops++
	c.resume[victim.pid()] = resume
	c.mu.Unlock()
	victim.signal(stopSignal)
	for limit := time.Now().Add(4 * stallTimeout); time.Now().Before(limit) && c.ctx.Err() == nil; time.Sleep(pollPause) {
		if closed(victim.dead) || victim.excused.Load() {
			return
		}
	}
	victim.signal(contSignal)
}

// shutDown ends everything in order, and checks that it ends clean.
func (c *run) shutDown() {
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, b := range c.violations {
			c.t.Error(b)
		}
		if c.t.Failed() {
			c.t.Logf("the host's log ends with:\n%s", c.log.String())
		}
	}()
	c.mu.Lock()
	c.noSubmit = true
	c.mu.Unlock()
	c.await("the submitters to end", c.closeSubmitters, c.submitters.Wait)
	c.until("all requests to be gone", func() bool { return c.bus.Stats().Live == 0 })
	c.until("all payloads to be back", func() bool { return c.leftovers() == "" })
	if left := c.leftovers(); left != "" {
		c.violationf("after all requests were gone there was left: %s", left)
	}
	c.checkBooks()
	c.checkMappings()

	c.mu.Lock()
	c.noStages = true
	c.mu.Unlock()
	c.await("the stages to end", c.server.Drain, c.stages.Wait)
	c.await("the dead to be buried", func() {}, c.reclaims.Wait)
	c.checkFailed()
	c.until("all processes to be forgotten", func() bool { return len(c.server.Processes()) == 0 })
	if x := c.bus.Stats().Exchange; x.Entries != 0 || x.Bytes != 0 {
		c.violationf("nobody is left, and the exchange has %+v", x)
	}

	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.server.Close(ctx); err != nil {
		c.violationf("close the server: %v", err)
	}
	if err := c.bus.Close(ctx); err != nil {
		c.violationf("close the bus: %v", err)
	}
	c.giveUp(nil)
}

// closeSubmitters tells the submitters to end.
func (c *run) closeSubmitters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.children {
		if ch.role.stage == "" {
			_ = ch.stdin.Close() // it may be closed
		}
	}
}

// await asks for something, again and again for those who were not there to
// hear it, until it is so. When it does not come, everybody is killed.
func (c *run) await(what string, ask, wait func()) {
	done := make(chan struct{})
	go func() { wait(); close(done) }()
	limit := time.NewTimer(patience)
	defer limit.Stop()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		ask()
		select {
		case <-done:
			return
		case <-again.C:
			continue
		case <-limit.C:
			stacks := make([]byte, 1<<20)
			c.violationf("waited %v for %s\n%s\n%s", patience, what, c.state(), stacks[:runtime.Stack(stacks, true)])
			c.dumpStacks()
		case <-c.ctx.Done():
		}
		c.giveUp(fmt.Errorf("waited for %s", what))
		c.killAll()
		<-done
		return
	}
}

// dumpStacks has processes that should have ended say what they are doing.
func (c *run) dumpStacks() {
	c.mu.Lock()
	var late []*child
	for _, ch := range c.children {
		if !closed(ch.dead) {
			late = append(late, ch)
		}
	}
	c.mu.Unlock()
	for _, ch := range late {
		ch.signal(syscall.SIGQUIT) // the runtime prints all stacks
		select {
		case <-ch.done:
			c.violationf("%s (process %d) was doing this:\n%s", ch.role.name, ch.pid(), ch.stderr.String())
		case <-time.After(patience / 6):
		}
	}
}

func (c *run) killAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noSubmit, c.noStages = true, true
	for _, ch := range c.children {
		ch.kill()
	}
}

// leftovers says what anybody still has.
func (c *run) leftovers() string {
	var left []string
	for _, p := range c.server.Processes() {
		if p.Held > 0 || p.Requests > 0 || p.Arena.Rooms > 0 || p.Arena.Used > 0 || p.Placed > 0 || p.Fetched > 0 {
			left = append(left, fmt.Sprintf("%+v", p))
		}
	}
	if n := c.bus.Stats().JoinBytes; n != 0 { // what the store still has, Close tells
		left = append(left, fmt.Sprintf("in joins %d bytes", n))
	}
	for _, v := range c.server.Check() {
		left = append(left, v.String())
	}
	return strings.Join(left, "; ")
}

// checkBooks checks the store, and that every request has ended once, and none
// that had no reason to end otherwise than well.
func (c *run) checkBooks() {
	ctx, cancel := context.WithTimeout(c.ctx, patience)
	defer cancel()
	n, err := node.Join(ctx, "checker", node.JoinOptions{Socket: c.socket})
	if err != nil {
		c.violationf("join: %v", err)
		return
	}
	defer func() { _ = n.Close(context.Background()) }()
	report, err := n.Call(ctx, "check", nil)
	if err != nil || !strings.Contains(string(report), `"violations":[]`) {
		c.violationf("the store: %s %v", report, err)
	}
	r, err := c.bus.Stream(ctx)
	if err != nil {
		c.violationf("a last request: %v", err)
		return
	}
	s := c.bus.Stats()
	r.Close()
	ended := s.Completed + s.Failed + s.Aborted + s.Deadline
	if want := int64(r.ID()) - 1; ended != want {
		c.violationf("%d requests ended, of %d that began", ended, want)
	}
	if s.Deadline > 0 || (s.Failed > 0 && !c.scenario.mayFail) {
		c.violationf("%d requests failed, %d were past their deadline", s.Failed, s.Deadline)
	}
	if told := c.completed.Load(); s.Completed < told {
		c.violationf("callers know of %d completed requests, the bus of %d", told, s.Completed)
	}
}
