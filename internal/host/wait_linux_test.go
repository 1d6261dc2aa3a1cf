package host_test

import (
	"testing"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/internal/host"
)

// TestWaitReachesProcesses: the processes of a run use the wait mode of the file, or that of the
// options if given.
func TestWaitReachesProcesses(t *testing.T) {
	t.Setenv(bus.EnvWait, string(bus.WaitBalanced))
	file := `omnibus: {wait: park, main: [sh, -c, "echo waits by $` + bus.EnvWait + `"]}
stages: [{stage_id: a, omnibus: {exec: [SELF]}}]`
	for want, change := range map[bus.Wait]func(*host.Options){
		bus.WaitPark: func(*host.Options) {},
		bus.WaitPoll: func(o *host.Options) { o.Wait = bus.WaitPoll },
	} {
		r := start(t, file, change)
		if text, err := r.wait(); err != nil || !r.out.has("waits by "+string(want)) {
			t.Errorf("want %s: %v\n%s", want, err, text)
		}
	}
}
