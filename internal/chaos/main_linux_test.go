package chaos

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"
)

var (
	wantKills  = flag.Int("chaos.kills", 50, "kills to count in TestChaos")
	wantDirect = flag.Int("chaos.direct", 30, "kills to count in TestChaosDirect, and half as many in TestChaosDirectPython")
	wantGPU    = flag.Int("chaos.gpu", 15, "kills to count in TestChaosGPU")
	gpuDriver  = flag.String("chaos.driver", "emul", "the driver of the GPU in TestChaosGPU: emul, or cuda in a binary built with the tag cuda")
	killTime   = flag.Duration("chaos.within", 0, "after this time 20 counted kills are enough; 0: no limit")
	wantHosts  = flag.Int("chaos.hosts", 5, "hosts to kill in TestHostKilled")
	seedFlag   = flag.Uint64("chaos.seed", 0, "seed of the tests' choices; 0: the time")
)

// roleEnv names the role of this test binary when it is started as another
// process.
const roleEnv = "OMNIBUS_CHAOS_ROLE"

// roles are the main functions of processes in Go, by role.
var roles = map[string]func() error{
	"stage":    serveStage,
	"submit":   submitForever,
	"host":     serveHost,
	"bad peer": runBadPeer,
	"bad lane": runBadLane,

	"gpu stage": serveGPUStage,
}

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := roles[role](); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(exitFailed)
		}
		return
	}
	os.Exit(m.Run())
}

// exitFailed is the exit status of a role that returns an error.
const exitFailed = 3

// seed returns the seed of a test's choices, and logs it.
func seed(t testing.TB) uint64 {
	s := *seedFlag
	if s == 0 {
		s = uint64(time.Now().UnixNano())
	}
	t.Logf("-chaos.seed %d", s)
	return s
}

func random(seed, stream uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, stream)) }
