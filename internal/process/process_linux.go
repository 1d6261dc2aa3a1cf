package process

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// pollSliceMS is how long a goroutine waits in poll(2) before it checks whether
// the watch has been closed.
const pollSliceMS = 100

// userHZ is the unit of the times in /proc, in ticks per second. It is the same on
// every architecture that Go supports.
const userHZ = 100

func adopt(fd, pid int) (*Process, error) {
	p := &Process{
		pid:     pid,
		file:    os.NewFile(uintptr(fd), "pidfd"),
		exited:  make(chan struct{}),
		closing: make(chan struct{}),
		ended:   make(chan struct{}),
	}
	var err error
	if p.raw, err = p.file.SyscallConn(); err != nil {
		_ = p.file.Close() // a pidfd has no data to lose
		return nil, err
	}
	go p.wait()
	return p, nil
}

// wait waits until the process is dead.
func (p *Process) wait() {
	defer close(p.ended)
	exited := false
	err := p.raw.Read(func(fd uintptr) bool {
		exited = readable(int(fd), 0)
		return exited
	})
	if err != nil && !errors.Is(err, os.ErrClosed) {
		exited = p.poll()
	}
	if exited {
		p.notifyExit()
	}
}

// poll waits on a thread of its own, if the runtime's poller cannot wait for the pidfd.
func (p *Process) poll() (exited bool) {
	for !exited {
		select {
		case <-p.closing:
			return false
		default:
		}
		if err := p.raw.Control(func(fd uintptr) { exited = readable(int(fd), pollSliceMS) }); err != nil {
			return false // closed
		}
	}
	return true
}

// readable reports whether a pidfd is readable, which means that its process is
// dead. It waits for at most the timeout.
func readable(fd, timeoutMS int) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, timeoutMS)
	return err == nil && n == 1 && fds[0].Revents&unix.POLLIN != 0
}

func (p *Process) hasExited() (exited bool) {
	err := p.raw.Control(func(fd uintptr) { exited = readable(int(fd), 0) })
	return err == nil && exited
}

func (p *Process) isStopped() bool {
	s, err := ReadStat(p.pid)
	// If the process still lives, the status was its own.
	return err == nil && (s.state == 'T' || s.state == 't') && p.alive()
}

// alive reports whether the process certainly lives. It is false after Close.
func (p *Process) alive() (alive bool) {
	err := p.raw.Control(func(fd uintptr) { alive = !readable(int(fd), 0) })
	return err == nil && alive
}

func (p *Process) processorTime() (used time.Duration, known bool) {
	s, err := ReadStat(p.pid)
	return s.used, err == nil && p.alive()
}

// Stat is a part of /proc/<pid>/stat.
type Stat struct {
	state   byte
	used    time.Duration // of processors, by all threads
	Started time.Duration // since the machine started
}

// ReadStat reads the status of the process that has the id pid now.
func ReadStat(pid int) (Stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return Stat{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return Stat{}, err
	}
	return parseStat(b)
}

// parseStat parses /proc/<pid>/stat. The second field is the program's name in
// parentheses. The name may contain parentheses and spaces, so the fields are
// counted from the last parenthesis.
func parseStat(b []byte) (Stat, error) {
	const (
		firstAfterName = 3
		stateField     = 3
		userField      = 14
		systemField    = 15
		startField     = 22
	)
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= startField-firstAfterName {
		return Stat{}, fmt.Errorf("process status %q: %d fields and more are needed", b, startField)
	}
	var times [3]time.Duration
	for i, field := range []int{userField, systemField, startField} {
		ticks, err := strconv.ParseInt(string(fields[field-firstAfterName]), 10, 64)
		if err != nil {
			return Stat{}, fmt.Errorf("process status: field %d: %w", field, err)
		}
		times[i] = time.Duration(ticks) * (time.Second / userHZ)
	}
	return Stat{state: fields[stateField-firstAfterName][0], used: times[0] + times[1], Started: times[2]}, nil
}
