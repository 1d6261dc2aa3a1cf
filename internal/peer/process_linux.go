package peer

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

// pollSliceMS is how long a goroutine that has to wait in poll(2) does so
// before it looks whether the watch has been closed.
const pollSliceMS = 100

// userHZ is the unit of the times in /proc: ticks a second, the same on every
// architecture that Go knows.
const userHZ = 100

func watch(conn *Conn, opts watchOptions) (*Process, error) {
	if conn.pid == 0 {
		return nil, fmt.Errorf("%w: neither side could see the other die; start both in one namespace", errNamespace)
	}
	fd, err := openPIDFD(conn, opts)
	if err != nil {
		return nil, err
	}
	if !opts.withoutPoller {
		// In this mode, and only in it, os.NewFile hands the descriptor to the
		// runtime's poller. When it cannot be set, watch falls back to poll(2).
		_ = unix.SetNonblock(fd, true)
	}
	return adopt(fd, conn.pid)
}

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
		_ = p.file.Close() // a pidfd holds nothing that could be lost
		return nil, err
	}
	go p.wait()
	return p, nil
}

// openPIDFD returns a descriptor of the process at the other end.
func openPIDFD(conn *Conn, opts watchOptions) (int, error) {
	fd, err := -1, error(unix.ENOPROTOOPT)
	if !opts.withoutPeerPIDFD {
		controlErr := conn.raw.Control(func(socket uintptr) {
			fd, err = unix.GetsockoptInt(int(socket), unix.SOL_SOCKET, unix.SO_PEERPIDFD)
		})
		if controlErr != nil {
			return -1, controlErr
		}
	}
	switch {
	case err == nil:
		return fd, nil
	case errors.Is(err, unix.ESRCH), errors.Is(err, unix.EINVAL):
		return -1, ErrGone // the second is what kernels before 6.15 say of one that was waited for
	case errors.Is(err, unix.ENOPROTOOPT):
		return openByNumber(conn)
	default:
		return -1, fmt.Errorf("ask the socket for its process: %w", err)
	}
}

// openByNumber opens the process that has the peer's number now. That is the
// peer if it was there before the connection, and if it is the same before and
// after: the number of a process is free for another only when it is dead.
func openByNumber(conn *Conn) (int, error) {
	before, err := readStat(conn.pid)
	if err != nil {
		return -1, err
	}
	fd, err := unix.PidfdOpen(conn.pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return -1, ErrGone
	}
	if err != nil {
		return -1, fmt.Errorf("open process: %w", err)
	}
	after, err := readStat(conn.pid)
	if err == nil && !isPeer(before, after, conn.since) {
		err = fmt.Errorf("%w: its number belongs to a process that was started later", ErrGone)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// isPeer tells by what was read before and after a number was opened whether the process
// that has it is the one that connected.
func isPeer(before, after stat, since time.Duration) bool {
	return after.started == before.started && before.started <= since
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
		p.exit()
	}
}

// poll waits with a thread of its own, where the runtime's poller cannot.
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

// readable reports whether a pidfd is, which is so from the death of its
// process on. It waits for at most the timeout.
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
	s, err := readStat(p.pid)
	// If the process lives now, then what was read was its own.
	return err == nil && (s.state == 'T' || s.state == 't') && p.alive()
}

// alive reports whether the process is there for certain: not after Close.
func (p *Process) alive() (alive bool) {
	err := p.raw.Control(func(fd uintptr) { alive = !readable(int(fd), 0) })
	return err == nil && alive
}

// stat is a part of /proc/<pid>/stat.
type stat struct {
	state   byte
	started time.Duration // since the machine started
}

func readStat(pid int) (stat, error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ESRCH) {
		return stat{}, fmt.Errorf("%w: %w", ErrGone, err)
	}
	if err != nil {
		return stat{}, err
	}
	return parseStat(b)
}

// parseStat reads a line of /proc/<pid>/stat. The second field is the program's
// name in parentheses, which may contain anything, and so may be followed by
// what looks like other fields.
func parseStat(b []byte) (stat, error) {
	const (
		firstAfterName = 3
		stateField     = 3
		startField     = 22
	)
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= startField-firstAfterName {
		return stat{}, fmt.Errorf("process status %q: %d fields and more are needed", b, startField)
	}
	ticks, err := strconv.ParseInt(string(fields[startField-firstAfterName]), 10, 64)
	if err != nil {
		return stat{}, fmt.Errorf("process status: start time: %w", err)
	}
	return stat{
		state:   fields[stateField-firstAfterName][0],
		started: time.Duration(ticks) * (time.Second / userHZ),
	}, nil
}
