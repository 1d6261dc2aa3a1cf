package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/host"
)

// A relative is a process that this test, or one of those, has started.
type relative struct {
	pid  int
	name string
}

// descendants are the processes below this one that have not ended. Those whose parent ended
// are this one's: see TestMain.
func descendants() (all []relative) {
	parents, names := make(map[int]int), make(map[int]string)
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		text, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue // it has ended
		}
		from, to := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
		fields := strings.Fields(string(text[to+1:]))
		if fields[0] == "Z" {
			continue
		}
		parent, err := strconv.Atoi(fields[1])
		if err != nil {
			continue
		}
		parents[pid], names[pid] = parent, string(text[from+1:to])
	}
	for pid := range parents {
		for up := parents[pid]; up > 1; up = parents[up] {
			if up == os.Getpid() {
				all = append(all, relative{pid, names[pid]})
				break
			}
		}
	}
	return all
}

// dumpPatience is how long each process has to say where it is.
const dumpPatience = 10 * time.Second

// dump writes what is known of a cell in which nothing moves into its folder: which requests
// wait, the host's status and metrics, and the stacks of every process.
func (r *run) dump() {
	waiting, _ := json.MarshalIndent(r.checker.waiting(), "", "  ") // plain numbers
	_ = os.WriteFile(filepath.Join(r.dir, "waiting.json"), waiting, 0o600)
	for name, args := range map[string][]string{
		"status.json": {omnibus(), "status", "-o", "json"}, "leases.json": {omnibus(), "leases", "-o", "json"},
		"metrics.txt": {"curl", "--silent", "--max-time", "5", "--unix-socket", r.socket() + ".http.sock", "http://host/metrics"},
	} {
		out, err := r.ask(args...)
		if err != nil {
			out = append(out, err.Error()...)
		}
		_ = os.WriteFile(filepath.Join(r.dir, name), out, 0o600)
	}
	all := descendants()
	for _, p := range all {
		if strings.HasPrefix(p.name, "python") {
			_ = unix.Kill(p.pid, unix.SIGUSR1)
			r.awaitFile(fmt.Sprintf("stacks-%d", p.pid))
		}
	}
	for _, p := range all { // a host last: it may be the parent of others
		if p.pid != r.host.cmd.Process.Pid && !strings.HasPrefix(p.name, "python") {
			_ = unix.Kill(p.pid, unix.SIGQUIT)
		}
	}
	time.Sleep(time.Second)
	_ = unix.Kill(r.host.cmd.Process.Pid, unix.SIGQUIT)
	select {
	case <-r.host.ended:
	case <-time.After(dumpPatience):
	}
	r.log("what is known of this cell is in %s", r.dir)
}

func (r *run) awaitFile(name string) {
	for limit := time.Now().Add(dumpPatience); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if info, err := os.Stat(filepath.Join(r.dir, name)); err != nil || info.Size() > 0 {
			return
		}
	}
}

// ask runs a command about the host, which may not answer.
func (r *run) ask(args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), dumpPatience)
	defer cancel()
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "OMNIBUS_SOCKET="+r.socket())
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("%s: %w: %s", strings.Join(args[1:], " "), err, &errs)
	}
	return out, nil
}

// awaitNothingHeld waits until the host says that nothing of the requests is left. What is held
// may take any time, as long as it becomes less.
func (r *run) awaitNothingHeld() error {
	var last string
	limit := time.Now().Add(r.bound)
	for {
		held, err := r.held()
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", errHang, err)
		case held == "":
			return nil
		case held != last:
			last, limit = held, time.Now().Add(r.bound)
		case time.Now().After(limit):
			return fmt.Errorf("%w: all requests have ended, and the host holds: %s", errHang, held)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// held says what the host holds of requests.
func (r *run) held() (string, error) {
	var all []string
	note := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	out, err := r.ask(omnibus(), "status", "-o", "json")
	if err != nil {
		return "", err
	}
	var s host.Status
	if err := json.Unmarshal(out, &s); err != nil {
		return "", err
	}
	note(s.Stats.Live > 0, "%d live requests", s.Stats.Live)
	for _, q := range s.Requests {
		note(true, "request %#x, %s", q.ID, q.Outcome)
	}
	note(s.Stats.JoinBytes > 0, "%d bytes in joins", s.Stats.JoinBytes)
	for _, st := range s.Stats.Stages {
		note(st.SlotsFree != st.Slots || st.Queued > 0, "stage %s: %d of %d slots free, %d queued", st.Name, st.SlotsFree, st.Slots, st.Queued)
	}
	for _, p := range s.Processes {
		note(p.Held+p.Requests+p.Kept.Payloads+p.Left.Payloads > 0, "process %s: %d deliveries, %d requests, %d kept, %d left",
			p.Name, p.Held, p.Requests, p.Kept.Payloads, p.Left.Payloads)
	}
	out, err = r.ask(omnibus(), "leases", "-o", "json")
	if err != nil {
		return "", err
	}
	var leases []host.Holding
	if err := json.Unmarshal(out, &leases); err != nil {
		return "", err
	}
	for _, l := range leases {
		l.Age = 0 // what it holds is the same
		note(l.Together != "alone", "lease %+v", l)
	}
	if len(all) == 0 {
		if _, err := r.ask(omnibus(), "check"); err != nil {
			return "", err
		}
		ended := s.Stats.Completed + s.Stats.Failed + s.Stats.Aborted + s.Stats.Deadline
		if most := int64(len(r.checker.plans)); ended > most || s.Stats.Completed < int64(r.checker.count[outcomeCompleted]) {
			return "", fmt.Errorf("the host has ended %d requests, %d of them completed, and callers %d, %d of them completed",
				ended, s.Stats.Completed, most, r.checker.count[outcomeCompleted])
		}
	}
	return strings.Join(all, "; "), nil
}
