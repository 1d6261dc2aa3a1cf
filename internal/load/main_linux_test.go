package load

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	forFlag      = flag.Duration("load.for", 0, "start cells for this time; 0: run a few")
	seedFlag     = flag.Uint64("load.seed", 1, "seed of the matrix and its cells")
	cellFlag     = flag.Int("load.cell", -1, "run only the cell of this number")
	requestsFlag = flag.Int("load.requests", 200, "requests of a cell")
	boundFlag    = flag.Duration("load.bound", time.Minute, "longest time without the begin or end of a request while some are open")
	longFlag     = flag.Bool("load.long", false, "run the cells of TestLong in full")
)

// Variables with the role of this test binary as another process.
const (
	roleEnv = "OMNIBUS_LOAD_ROLE"
	cellEnv = "OMNIBUS_LOAD_CELL"
	dirEnv  = "OMNIBUS_LOAD_DIR"
)

var roles = map[string]func(c *cell) error{"host": hostPipeline, "stage": serveStage, "caller": call}

// exitFailed is the exit status of a role that returns an error.
const exitFailed = 3

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", role, err)
			os.Exit(exitFailed)
		}
		return
	}
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(filepath.Dir(built))
	}
	os.Exit(code)
}

func runRole(role string) error {
	stacks, err := os.Create(filepath.Join(os.Getenv(dirEnv), fmt.Sprintf("stacks-%d", os.Getpid())))
	if err != nil {
		return err
	}
	defer stacks.Close()
	if err := debug.SetCrashOutput(stacks, debug.CrashOptions{}); err != nil { // for SIGQUIT
		return err
	}
	var c cell
	for _, part := range strings.Fields(os.Getenv(cellEnv)) {
		name, value, _ := strings.Cut(part, "=")
		for d := range dimCount {
			if dimensions[d].name == name {
				c[d] = value
			}
		}
	}
	return roles[role](&c)
}

var built string // the path of the command

// omnibus is the command, built once.
var omnibus = sync.OnceValue(func() string {
	dir, err := os.MkdirTemp("", "omnibus")
	if err != nil {
		panic(err)
	}
	built = filepath.Join(dir, "omnibus")
	if out, err := exec.Command("go", "build", "-o", built, "../../cmd/omnibus").CombinedOutput(); err != nil {
		panic(fmt.Sprintf("build omnibus: %v: %s", err, out))
	}
	return built
})
