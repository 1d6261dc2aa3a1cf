package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/omnibus-runtime/omnibus/bus"
	"github.com/omnibus-runtime/omnibus/bus/host"
	"github.com/omnibus-runtime/omnibus/bus/node"
)

// serveHost is the process of a host. It hosts the bus until its standard input
// ends, and prints the process id of each process that serves a stage.
func serveHost() error {
	opts := busOptions()
	opts.OnStall = func([]bus.Stall) {}
	opts.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	b, err := bus.Open(context.Background(), pipeline(), opts)
	if err != nil {
		return err
	}
	s, err := host.Listen(b, os.Getenv(node.EnvSocket), host.ListenOptions{
		OnServe: func(_ string, _, pid int) { fmt.Printf("serve %d\n", pid) },
	})
	if err != nil {
		return err
	}
	fmt.Printf("listen %d\n", s.Status().Epoch)
	_, _ = io.Copy(io.Discard, os.Stdin) // until the test closes it, or dies
	s.Drain()
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	err = b.Drain(ctx)
	for len(s.Processes()) > 0 && ctx.Err() == nil {
		time.Sleep(pollPause)
	}
	return errors.Join(err, s.Close(ctx), b.Close(ctx))
}

// TestHostKilled kills the host under load. Requests of that host end with
// ErrHostGone; processes with the option Rejoin attach to the next host, and
// serve its requests.
func TestHostKilled(t *testing.T) {
	hosts := *wantHosts
	if testing.Short() {
		hosts = min(hosts, 2)
	}
	r := random(seed(t), 3)
	before := takeInventory(t)
	e := &hostRun{t: t, socket: filepath.Join(t.TempDir(), "bus.sock"), served: map[int]bool{}, submitted: map[int]bool{}}
	defer before.compare(t)
	defer e.killAll()

	e.newHost()
	for _, role := range relayedRoles() {
		role.env = append(role.env, rejoinEnv+"=1")
		e.startChild(role)
	}
	for i := range hosts {
		e.awaitRejoined()
		if t.Failed() {
			return
		}
		if i == 0 {
			e.files = e.countFiles()
		}
		time.Sleep(time.Duration(r.Int64N(int64(maxKillPause)))) // any moment will do
		e.host.kill()
		<-e.host.done
		e.newHost()
	}
	e.awaitRejoined()
	if !t.Failed() {
		e.stopAll()
	}
	t.Logf("%d hosts killed; %d requests completed, %d requests lost their host; %d processes rejoined each time", hosts, e.completed, e.gone, len(e.children))
}

// hostRun is a host, and the processes that outlive it.
type hostRun struct {
	t      *testing.T
	socket string
	host   *child
	files  map[int]int // open descriptors, by process

	children []*child

	mu        sync.Mutex
	epoch     string
	served    map[int]bool // processes that serve a stage of the current host
	submitted map[int]bool // processes with a completed request at the current host
	completed int
	gone      int
	ending    bool
}

// newHost starts a host and waits until it listens.
func (e *hostRun) newHost() {
	e.t.Helper()
	e.mu.Lock()
	clear(e.served) // before the start: processes may serve before the host prints that it listens
	e.mu.Unlock()
	listens := make(chan string, 1)
	host, err := start(role{name: "host", env: []string{roleEnv + "=host"}}, e.socket, "", func(line string) {
		var pid int
		if epoch, ok := strings.CutPrefix(line, "listen "); ok {
			e.mu.Lock()
			e.epoch = epoch
			clear(e.submitted)
			e.mu.Unlock()
			listens <- epoch
		} else if _, err := fmt.Sscanf(line, "serve %d", &pid); err == nil {
			e.mu.Lock()
			e.served[pid] = true
			e.mu.Unlock()
		}
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.host = host
	select {
	case <-listens:
	case <-host.done:
		e.t.Fatalf("the host ended: %v\n%s", host.err, host.stderr.String())
	case <-time.After(patience):
		e.t.Fatal("the host does not listen")
	}
}

// startChild starts a process that outlives its hosts.
func (e *hostRun) startChild(r role) {
	e.t.Helper()
	var c *child
	ready := make(chan struct{})
	c, err := start(r, e.socket, "", func(line string) {
		<-ready
		e.handleLine(c, line)
	})
	if err != nil {
		e.t.Fatal(err)
	}
	e.children = append(e.children, c)
	close(ready)
}

// handleLine records a line that a submitter printed.
func (e *hostRun) handleLine(c *child, line string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch what, rest, _ := strings.Cut(line, " "); what {
	case "done":
		e.completed++
		if rest == e.epoch {
			e.submitted[c.pid()] = true
		}
	case "gone":
		e.gone++
	default:
		e.t.Errorf("%s (process %d): %s", c.role.name, c.pid(), line)
	}
}

// awaitRejoined waits until every process serves, or has submitted to, the current host.
func (e *hostRun) awaitRejoined() {
	e.t.Helper()
	for limit := time.Now().Add(patience); ; time.Sleep(pollPause) {
		missing := e.missing()
		if missing == "" {
			return
		}
		if time.Now().After(limit) || e.t.Failed() {
			e.t.Errorf("not at the new host: %s\nhost: %s", missing, e.host.stderr.String())
			return
		}
	}
}

func (e *hostRun) missing() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var names []string
	for _, c := range e.children {
		if closed(c.done) && !e.ending {
			e.t.Errorf("%s (process %d) ended: %v\n%s", c.role.name, c.pid(), c.err, c.stderr.String())
		}
		if there := e.served; c.role.stage != "" && !there[c.pid()] || c.role.stage == "" && !e.submitted[c.pid()] {
			names = append(names, fmt.Sprintf("%s (process %d) %s", c.role.name, c.pid(), c.stderr.String()))
		}
	}
	return strings.Join(names, ", ")
}

// countFiles counts the open descriptors of each process.
func (e *hostRun) countFiles() map[int]int {
	all := make(map[int]int)
	for _, c := range e.children {
		if entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", c.pid())); err == nil {
			all[c.pid()] = len(entries)
		}
	}
	return all
}

// strayFiles is how many more descriptors an idle process of a stage may have
// than it had under the first host. The segment of the exchange is one of them: it
// is made with the first put. Descriptors of former hosts must not add up.
const strayFiles = 10

// checkFiles checks that the idle processes of stages have closed the descriptors
// of dead hosts.
func (e *hostRun) checkFiles() {
	grown := func() (all []string) {
		now := e.countFiles()
		for _, c := range e.children {
			if n := now[c.pid()]; c.role.stage != "" && n > e.files[c.pid()]+strayFiles {
				all = append(all, fmt.Sprintf("%s (process %d) has %d descriptors, and had %d under the first host", c.role.name, c.pid(), n, e.files[c.pid()]))
			}
		}
		return all
	}
	limit := time.Now().Add(patience)
	for len(grown()) > 0 && time.Now().Before(limit) {
		time.Sleep(pollPause)
	}
	for _, g := range grown() {
		e.t.Error(g)
	}
}

// stopAll ends all processes in order: callers, then stages, which would otherwise wait for a next
// host, then the host.
func (e *hostRun) stopAll() {
	e.mu.Lock()
	e.ending = true
	e.mu.Unlock()
	for _, c := range e.children {
		if c.role.stage == "" {
			_ = c.stdin.Close()
			e.awaitEnd(c)
		}
	}
	e.checkFiles()
	for _, c := range e.children {
		if c.role.stage != "" {
			c.signal(syscall.SIGTERM)
			e.awaitEnd(c)
		}
	}
	_ = e.host.stdin.Close()
	e.awaitEnd(e.host)
}

// awaitEnd waits for a process to end well.
func (e *hostRun) awaitEnd(c *child) {
	select {
	case <-c.done:
		if c.err != nil {
			e.t.Errorf("%s (process %d) ended with: %v\n%s", c.role.name, c.pid(), c.err, c.stderr.String())
		}
	case <-time.After(patience):
		e.t.Errorf("%s (process %d) does not end\n%s", c.role.name, c.pid(), c.stderr.String())
	}
}

// killAll kills all processes that are left.
func (e *hostRun) killAll() {
	for _, c := range append(e.children, e.host) {
		if c != nil {
			c.kill()
			<-c.done
		}
	}
}
