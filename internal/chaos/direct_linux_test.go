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

// TestChaosDirect kills processes whose deliveries take the direct path. A request
// fails when one of its processes dies, with an error that names the process. All
// other requests complete, and no result is wrong.
func TestChaosDirect(t *testing.T) { testDirect(t, "direct", *wantDirect) }

// TestChaosDirectPython is the same with a stage in between whose input and output
// the host relays.
func TestChaosDirectPython(t *testing.T) { testDirect(t, "direct python", *wantDirect/2) }

func testDirect(t *testing.T, name string, kills int) {
	testKills(t, scenarios[name](), kills, 1+kills/200)
}

// testKills runs a scenario until so many kills have counted, and each fault point has killed
// timesEach processes of each role. It returns the bus's figures.
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

// checkFailed checks that the error of each failed request names a process that was
// killed or stopped.
func (c *run) checkFailed() {
	c.mu.Lock()
	failed := c.failures
	c.mu.Unlock()
	for _, text := range failed {
		if !c.namesVictim(text) && !c.poisoned(text) {
			c.violationf("a request failed, and its error names no process that was killed: %s", text)
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

// checkMappings checks that the live processes have unmapped the lanes of dead
// processes, and all payloads.
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
		c.until("%s (process %d) to unmap lanes and payloads", func() bool {
			left = leftoverMappings(pid, len(alive))
			return left == ""
		}, name, pid)
		if left != "" {
			c.violationf("%s (process %d) still has %s", name, pid, left)
		}
	}
}

// leftoverMappings describes the lanes and payloads that an idle process has mapped
// and no longer needs; empty: none.
func leftoverMappings(pid, alive int) string {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return "" // it has ended
	}
	// Two halves of a lane for each other process, and two for itself.
	if n := strings.Count(string(maps), "memfd:omnibus-lane"); n > 2*(alive+1) {
		return fmt.Sprintf("%d halves of lanes, with %d processes alive", n, alive)
	}
	if n := strings.Count(string(maps), "memfd:omnibus-payload"); n > 0 {
		return fmt.Sprintf("%d payloads", n)
	}
	return ""
}
