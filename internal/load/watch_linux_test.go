package load

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/bus/host"
)

// A cellProcess is a process of a cell, started by this test or by another process.
type cellProcess struct {
	pid  int
	name string
}

// processes are the live processes of the cell: those with its folder in their environment.
func (r *run) processes() (all []cellProcess) {
	mark := []byte(dirEnv + "=" + r.dir + "\x00")
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile("/proc/" + e.Name() + "/environ") // empty for a process that has ended
		if err != nil || !bytes.Contains(env, mark) {
			continue
		}
		name, err := os.ReadFile("/proc/" + e.Name() + "/comm")
		if err == nil {
			all = append(all, cellProcess{pid, strings.TrimSpace(string(name))})
		}
	}
	return all
}

// dumpPatience is how long each process may take to write its stacks.
const dumpPatience = 10 * time.Second

// dump writes the state of a cell without progress into its folder: the waiting requests, the host's
// status and metrics, and the stacks of every process.
func (r *run) dump() {
	waiting, _ := json.MarshalIndent(r.checker.waiting(), "", "  ") // never fails for plans
	_ = os.WriteFile(filepath.Join(r.dir, "waiting.json"), waiting, 0o600)
	for _, verb := range []string{"status", "leases"} {
		out, err := r.ask(omnibus(), verb, "-o", "json")
		if err != nil {
			out = append(out, err.Error()...)
		}
		_ = os.WriteFile(filepath.Join(r.dir, verb+".json"), out, 0o600)
	}
	if !r.cell.program() { // the program has no metrics
		_ = os.WriteFile(filepath.Join(r.dir, "metrics.txt"), r.metrics(), 0o600)
	}
	if s, err := r.status(); err != nil {
		r.log("the host does not tell its status: %v", err)
	} else {
		r.log("the first requests at the host: %+v", first(s.Requests, 5))
	}
	all := r.processes()
	for _, p := range all {
		if strings.HasPrefix(p.name, "python") {
			_ = unix.Kill(p.pid, unix.SIGUSR1)
			r.awaitFile(fmt.Sprintf("stacks-%d", p.pid))
		}
	}
	for _, p := range all { // the host last: it may relay the output of others
		if p.pid != r.host.cmd.Process.Pid && !strings.HasPrefix(p.name, "python") {
			r.dumpAndEnd(p.pid)
		}
	}
	r.dumpAndEnd(r.host.cmd.Process.Pid)
	r.log("the files of this cell are in %s", r.dir)
}

// metrics returns the metrics of omnibus run, or the text of the error.
func (r *run) metrics() []byte {
	var dialer net.Dialer
	client := &http.Client{Timeout: dumpPatience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", r.socket()+".http.sock")
		},
	}}
	answer, err := client.Get("http://host/metrics")
	if err != nil {
		return []byte(err.Error())
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		text = append(text, err.Error()...)
	}
	return text
}

// dumpAndEnd has a program in Go write its stacks and end.
func (r *run) dumpAndEnd(pid int) {
	_ = unix.Kill(pid, unix.SIGQUIT)
	for limit := time.Now().Add(dumpPatience); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if !slices.ContainsFunc(r.processes(), func(p cellProcess) bool { return p.pid == pid }) {
			return
		}
	}
}

func (r *run) awaitFile(name string) {
	for limit := time.Now().Add(dumpPatience); time.Now().Before(limit); time.Sleep(10 * time.Millisecond) {
		if info, err := os.Stat(filepath.Join(r.dir, name)); err != nil || info.Size() > 0 {
			return
		}
	}
}

// ask runs a command that asks the host, which may not answer.
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

func (r *run) status() (s host.Status, err error) {
	out, err := r.ask(omnibus(), "status", "-o", "json")
	if err != nil {
		return s, err
	}
	err = json.Unmarshal(out, &s)
	return s, err
}

// awaitNothingHeld waits until the host reports that it holds nothing of the requests. There is no
// time limit as long as the report changes.
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

// held describes what the host holds of requests; empty: nothing.
func (r *run) held() (string, error) {
	var all []string
	note := func(is bool, format string, args ...any) {
		if is {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	s, err := r.status()
	if err != nil {
		return "", err
	}
	note(s.Stats.Live > 0, "%d live requests", s.Stats.Live)
	for _, q := range s.Requests {
		note(true, "request %v, %s", q.ID, q.Outcome)
	}
	note(s.Stats.JoinBytes > 0, "%d bytes in joins", s.Stats.JoinBytes)
	for _, st := range s.Stats.Stages {
		note(st.SlotsFree != st.Slots || st.Queued > 0,
			"stage %s: %d of %d slots free, %d queued", st.Name, st.SlotsFree, st.Slots, st.Queued)
	}
	for _, p := range s.Processes {
		note(p.Held+p.Requests+p.Kept.Payloads+p.Left.Payloads > 0,
			"process %s: %d deliveries, %d requests, %d kept, %d left",
			p.Name, p.Held, p.Requests, p.Kept.Payloads, p.Left.Payloads)
	}
	out, err := r.ask(omnibus(), "leases", "-o", "json")
	if err != nil {
		return "", err
	}
	var leases []host.Holding
	if err := json.Unmarshal(out, &leases); err != nil {
		return "", err
	}
	for _, l := range leases {
		l.Age = 0 // the age is no change of the report
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
	slices.Sort(all) // the order of the report is random
	return strings.Join(all, "; "), nil
}
