package chaos

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
)

// TestChaosDirect kills processes whose deliveries go past the host. Requests
// fail with their processes, and say so; no result is wrong, and all others
// complete.
func TestChaosDirect(t *testing.T) { testDirect(t, "direct", *wantDirect) }

// TestChaosDirectPython is the same with a stage in between to which, and from
// which, the host relays.
func TestChaosDirectPython(t *testing.T) { testDirect(t, "direct python", *wantDirect/2) }

func testDirect(t *testing.T, name string, kills int) {
	testKills(t, scenarios[name](), kills, 1+kills/200)
}

// testKills puts on a play until so many kills have counted, and as many at each named place
// as timesEach says. It returns the bus's figures.
func testKills(t *testing.T, p scenario, kills, timesEach int) bus.Stats {
	t.Helper()
	if testing.Short() {
		kills = min(kills, 10)
	}
	s := seed(t)
	before := takeInventory(t)
	c := openRun(t, s, p, timesEach)
	c.startAll()
	c.killUntil(random(s, 1), kills)
	stats := c.bus.Stats()
	c.shutDown()
	before.compare(t)
	c.report()
	return stats
}

var processNumber = regexp.MustCompile(`process (\d+)`)

// checkFailed checks that each request that failed names a process that was
// killed, or stopped.
func (c *run) checkFailed() {
	c.mu.Lock()
	failed := c.failures
	c.mu.Unlock()
	for _, text := range failed {
		if !c.namesVictim(text) && !c.poisoned(text) {
			c.violationf("a request failed, and no process that was killed is named: %s", text)
		}
	}
}

func (c *run) namesVictim(text string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, m := range processNumber.FindAllStringSubmatch(text, -1) {
		if pid, err := strconv.Atoi(m[1]); err == nil && c.victims[pid] {
			return true
		}
	}
	return false
}

// checkMappings checks that the processes that are left have let go of what they
// had of those that are not, and of all payloads.
func (c *run) checkMappings() {
	c.mu.Lock()
	alive := make(map[int]string)
	for pid, ch := range c.children {
		if !closed(ch.dead) && ch.role.python == "" {
			alive[pid] = ch.role.name
		}
	}
	c.mu.Unlock()
	for pid, name := range alive {
		var left string
		c.until("%s (process %d) to let go of what it had", func() bool {
			left = leftoverMappings(pid, len(alive))
			return left == ""
		}, name, pid)
		if left != "" {
			c.violationf("%s (process %d) still has %s", name, pid, left)
		}
	}
}

// leftoverMappings says what a process at rest has mapped, or open, that it has no use for.
func leftoverMappings(pid, alive int) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "" // it has ended
	}
	// Two halves with each of the others, and both with itself.
	if n := strings.Count(string(maps), "memfd:omnibus-lane"); n > 2*(alive+1) {
		return fmt.Sprintf("%d halves of lanes, with %d processes alive", n, alive)
	}
	if n := strings.Count(string(maps), "memfd:omnibus-payload"); n > 0 {
		return fmt.Sprintf("%d payloads", n)
	}
	return ""
}
