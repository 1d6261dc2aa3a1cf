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
	// maxBusyWait bounds the wait until a victim holds something.
	maxBusyWait = 100 * time.Millisecond
)

// leastKills are enough after -chaos.within, for machines on which processes take
// long to start.
const leastKills = 20

// manyTimes bounds the kills, as a multiple of the wanted number: by then processes have reached every
// fault point that they can reach.
const manyTimes = 10

// killUntil kills processes until enough kills at random moments count, and a process
// has died at every planned fault point.
func (c *run) killUntil(r *rand.Rand, kills int) {
	last, moved := int64(0), time.Now()
	for began := moved; c.ctx.Err() == nil && !c.enoughKills(kills); {
		if *killTime > 0 && time.Since(began) >= *killTime {
			kills = min(kills, leastKills)
		}
		if done := c.kills(); done > manyTimes*max(kills, leastKills) {
			c.violationf("after %d kills no process has reached these fault points: %s", done, c.faults.list())
			return
		}
		if now := c.completed.Load(); now != last {
			last, moved = now, time.Now()
		} else if time.Since(moved) > patience {
			c.violationf("no request has ended for %v\n%s", patience, c.state())
			c.giveUp(fmt.Errorf("no request ends"))
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

// kills returns the number of kills at random moments that count.
func (c *run) kills() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counted
}

// enoughKills reports whether enough kills count, and no planned fault point is left.
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

// choose picks a live process, rarely one that has a fault point.
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

// awaitBusy waits, for maxBusyWait at most, until the victim holds something.
func (c *run) awaitBusy(victim *child) bool {
	for limit := time.Now().Add(maxBusyWait); time.Now().Before(limit); time.Sleep(pollPause) {
		if h, _ := c.holding(victim.pid()); c.worth(victim.role, h) {
			return true
		}
	}
	return false
}

// stop stops a process until the host reports it stuck, after which it is killed or
// continued: see stuck. A process that held nothing is never reported, and continued here.
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

// shutDown ends submitters, stages and the bus in order, and checks that nothing is left.
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
	c.until("all payloads to be returned", func() bool { return c.leftovers() == "" })
	if left := c.leftovers(); left != "" {
		c.violationf("left after the end of all requests: %s", left)
	}
	c.checkBooks()
	c.checkMappings()

	c.mu.Lock()
	c.noStages = true
	c.mu.Unlock()
	c.await("the stages to end", c.server.Drain, c.stages.Wait)
	c.await("all deaths to be recorded", func() {}, c.reclaims.Wait)
	c.checkFailed()
	c.until("the host to remove all processes", func() bool { return len(c.server.Processes()) == 0 })
	if x := c.bus.Stats().Exchange; x.Entries != 0 || x.Bytes != 0 {
		c.violationf("all processes have ended, and the exchange has %+v", x)
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

// closeSubmitters closes the standard input of all submitters, which ends them.
func (c *run) closeSubmitters() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range c.children {
		if ch.role.stage == "" {
			_ = ch.stdin.Close() // it may be closed
		}
	}
}

// await calls ask repeatedly until wait returns: a process that starts after one call
// is asked by the next. After patience, all processes are killed.
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

// dumpStacks has all live processes print their stacks.
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
			c.violationf("%s (process %d) had these stacks:\n%s", ch.role.name, ch.pid(), ch.stderr.String())
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

// leftovers describes what processes and the bus still hold; empty: nothing.
func (c *run) leftovers() string {
	var left []string
	for _, p := range c.server.Processes() {
		if p.Held > 0 || p.Requests > 0 || p.Arena.Payloads > 0 || p.Arena.Used > 0 || p.Placed > 0 || p.Fetched > 0 {
			left = append(left, fmt.Sprintf("%+v", p))
		}
	}
	if n := c.bus.Stats().JoinBytes; n != 0 { // Close reports what is left in the store
		left = append(left, fmt.Sprintf("in joins %d bytes", n))
	}
	for _, v := range c.server.Check() {
		left = append(left, v.String())
	}
	return strings.Join(left, "; ")
}

// checkBooks checks the store, that every request has ended once, and that requests
// failed only where the scenario allows it.
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
		c.violationf("callers count %d completed requests, the bus %d", told, s.Completed)
	}
}
