package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// One in oneByOne requests of omnibus submit has a process of its own, and its results are
	// checked. The others are submitted by --count.
	oneByOne = 8
	// perCommand is how many requests one command submits, at most.
	perCommand = 1000
	// mostCommands run at a time.
	mostCommands = 8
)

// Exit codes of omnibus submit.
const (
	exitError    = 1
	exitAborted  = 3
	exitDeadline = 4
	exitSignal   = 130
)

// exitsOfAborts are the exit codes after an interrupt; -1 is the code of a command that the interrupt
// killed before the command handled signals.
var exitsOfAborts = []int{exitSignal, exitAborted, -1}

// startCommands submits the requests by omnibus submit.
func (r *run) startCommands() {
	go func() {
		all := r.checker.plans
		counted := 0
		if r.cell[dimEnds] == endComplete {
			counted = len(all) - len(all)/oneByOne
		}
		for from := 0; from < counted; from += perCommand {
			if err := r.submitCounted(all[from:min(from+perCommand, counted)]); err != nil {
				r.report(event{err: err})
				return
			}
		}
		var group sync.WaitGroup
		next := make(chan *plan)
		for range min(mostCommands, r.cell.concurrency()) {
			group.Go(func() {
				for p := range next {
					if err := r.submitAlone(p); err != nil {
						r.report(event{err: err})
					}
				}
			})
		}
		for i := range all[counted:] {
			next <- &all[counted+i]
		}
		close(next)
		group.Wait()
	}()
}

// submit makes a command of omnibus submit, with the input of a plan.
func (r *run) submit(p *plan, args ...string) (cmd *exec.Cmd, done func(), err error) {
	log, err := os.OpenFile(filepath.Join(r.dir, "submit.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	if p.End == endDeadline {
		args = append(args, "--deadline", max(p.After, time.Millisecond).String())
	}
	cmd = exec.Command(omnibus(), append([]string{"submit", "--socket", r.socket()}, args...)...)
	cmd.Env = append(os.Environ(), "GOTRACEBACK=all", dirEnv+"="+r.dir)
	cmd.Stdin, cmd.Stderr = bytes.NewReader(inputOf(p.Tag, 0, p.Total).payload()), log
	return cmd, func() { _ = log.Close() }, nil
}

// submitCounted submits the input of the first plan once for each plan, by one command.
func (r *run) submitCounted(all []plan) error {
	c, p := r.cell, &all[0]
	for i := range all {
		r.report(event{line: fmt.Sprintf("open %d", all[i].Number)})
	}
	cmd, done, err := r.submit(p,
		"--count", fmt.Sprint(len(all)), "--concurrency", fmt.Sprint(c.concurrency()), "-o", "json")
	if err != nil {
		return err
	}
	defer done()
	out, err := cmd.Output()
	var report struct {
		Requests  int    `json:"requests"`
		Completed int    `json:"completed"`
		Failed    int    `json:"failed"`
		Results   int    `json:"results"`
		Bytes     int    `json:"result_bytes"`
		FirstErr  string `json:"first_error"`
	}
	if bad := json.Unmarshal(out, &report); bad != nil {
		return fmt.Errorf("submit --count: %w: %w: %s", err, bad, r.tail("submit"))
	}
	results := len(c.results(p))
	exact := c[dimPolicy] != policyDrop && report.Failed == 0
	switch {
	case report.Completed+report.Failed != len(all):
		return fmt.Errorf("of %d requests %d have completed and %d failed", len(all), report.Completed, report.Failed)
	case exact && (report.Results != results*len(all) || report.Bytes != report.Results*(int(p.Total)+c.wrapped(p))):
		return fmt.Errorf("%w: %d results of %d bytes, for %d requests of %d results of %d bytes each",
			errResults, report.Results, report.Bytes, len(all), results, p.Total)
	}
	for i := range all {
		outcome := outcomeCompleted
		if i >= report.Completed {
			outcome = commandOutcome(p, report.FirstErr)
		}
		var sums []uint32 // the command only counts results, which is checked above
		if outcome == outcomeCompleted {
			for _, h := range c.results(&all[i]) {
				sums = append(sums, h.sum())
			}
		}
		r.report(event{line: endLine(all[i].Number, outcome, sums)})
	}
	return nil
}

// wrapped is the number of bytes that msgpack adds to a result that a function in Python returned.
func (c *cell) wrapped(p *plan) int {
	last := c[dimSecond]
	if c.single() {
		last = c[dimFirst]
	}
	if last != kindGenerator && last != kindPyBatch {
		return 0
	}
	switch {
	case p.Total < 1<<8:
		return 2
	case p.Total < 1<<16:
		return 3
	}
	return 5
}

func commandOutcome(p *plan, text string) string {
	switch {
	case saysFull(text):
		return outcomeWindow
	case p.End == endDeadline && (strings.Contains(text, "deadline") || strings.Contains(text, "nothing came within")):
		return outcomeDeadline
	}
	return text
}

// submitAlone submits one request by one command. An abort is an interrupt, a close a kill.
func (r *run) submitAlone(p *plan) error {
	r.report(event{line: fmt.Sprintf("open %d", p.Number)})
	cmd, done, err := r.submit(p)
	if err != nil {
		return err
	}
	defer done()
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signalled := false
	over := make(chan struct{})
	go func() {
		defer close(over)
		if p.End != endAbort && p.End != endClose {
			return
		}
		select {
		case <-ctx.Done():
		case <-time.After(4 * p.After): // a process takes some time to start
			signalled = true
			if p.End == endClose {
				_ = cmd.Process.Kill()
			} else {
				_ = cmd.Process.Signal(os.Interrupt)
			}
		}
	}()
	err = cmd.Wait()
	cancel()
	<-over
	outcome := outcomeCompleted
	var exit *exec.ExitError
	switch {
	case err == nil:
	case signalled && p.End == endClose:
		outcome = outcomeClosed
	case signalled && errors.As(err, &exit) && slices.Contains(exitsOfAborts, exit.ExitCode()):
		outcome = outcomeAborted
	case errors.As(err, &exit) && exit.ExitCode() == exitDeadline && p.End == endDeadline:
		outcome = outcomeDeadline
	case errors.As(err, &exit) && exit.ExitCode() == exitError:
		outcome = commandOutcome(p, r.tail("submit"))
	default:
		outcome = err.Error() + ": " + r.tail("submit")
	}
	sums, err := split(out.Bytes(), outcome == outcomeCompleted)
	if err != nil {
		return fmt.Errorf("request %d, %s: %w", p.Number, outcome, err)
	}
	r.report(event{line: endLine(p.Number, outcome, sums)})
	return nil
}

// split returns the checksums of the payloads in the output of the command, which follow each
// other. The output of a command that was ended early may end within a payload.
func split(out []byte, whole bool) (sums []uint32, err error) {
	for len(out) > 0 {
		if skip := map[byte]int{0xc4: 2, 0xc5: 3, 0xc6: 5}[out[0]]; skip > 0 { // msgpack
			out = out[min(skip, len(out)):]
		}
		total := len(out) + 1
		if len(out) >= headerBytes {
			total = int(binary.LittleEndian.Uint32(out[20:]))
		}
		if total < headerBytes || total > len(out) {
			if whole {
				return nil, fmt.Errorf("%w: %d bytes at the end of the results", errPayload, len(out))
			}
			return sums, nil
		}
		sums = append(sums, crc32.ChecksumIEEE(out[:total]))
		out = out[total:]
	}
	return sums, nil
}

func endLine(number int, outcome string, sums []uint32) string {
	text := make([]string, len(sums))
	for i, sum := range sums {
		text[i] = fmt.Sprint(sum)
	}
	return fmt.Sprintf("end %d %q %s", number, outcome, strings.Join(text, ","))
}
