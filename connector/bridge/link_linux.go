package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// The packets are those of the Python module omnibus.bridge.
const (
	headerBytes = 16
	maxPacket   = 64 << 10
	unknownSize = ^uint64(0)
)

// lanes bounds the calls that a bridge runs at a time.
const lanes = 4

type operation uint32

const (
	opPut operation = iota + 1
	opGet
	opRemove
	opPresent
	opDrop
	opPutBack
)

func (op operation) String() string {
	return [...]string{"", "put", "get", "remove", "look", "drop", "put back"}[op]
}

const (
	codeOK    = 0
	codeSmall = 8
)

// failures maps codes to errors.
var failures = map[uint32]error{
	2: connector.ErrNotFound, 3: connector.ErrFull, 4: connector.ErrTooLarge, 5: connector.ErrUnavailable,
	6: connector.ErrCorrupt, 7: connector.ErrKey, 9: errAlreadyGot, 10: connector.ErrMetadata,
}

// errAlreadyGot reports a value that existed and was got: waiting for it is useless.
var errAlreadyGot = fmt.Errorf("%w, and there will not be", connector.ErrNotFound)

// errBridgeDied reports that the bridge died during a call.
var errBridgeDied = errors.New("the bridge died")

// An answer is the result of a call.
type answer struct {
	code       uint32
	size       uint64
	text       string
	bridgeDied bool // there is no answer
}

func (a answer) err() error {
	switch {
	case a.bridgeDied:
		return errBridgeDied
	case a.code == codeOK || a.code == codeSmall:
		return nil
	case failures[a.code] != nil:
		return fmt.Errorf("%w: %s", failures[a.code], a.text)
	}
	return errors.New("in the bridge: " + a.text)
}

// A link is one process of the bridge, from its start to its death.
type link struct {
	cmd   *exec.Cmd
	dead  chan struct{} // closed when the process has ended
	tail  *tail         // end of its standard error; read after dead is closed
	lanes []*lane

	buffers atomic.Uint32 // the number of the last buffer

	mu   sync.Mutex
	idle []*lane
}

// A lane is a socket that one thread of the bridge serves: one call at a time.
type lane struct {
	link   *link
	conn   *net.UnixConn
	packet []byte // of an answer
}

// start starts a bridge, and waits until it has opened its client.
func start(ctx context.Context, python, engine, settings string) (*link, error) {
	extra, _, _ := strings.Cut(engine, "-") // of the client package
	l := &link{tail: new(tail), dead: make(chan struct{})}
	l.cmd = exec.Command(python, "-m", "omnibus.bridge", engine, strconv.Itoa(lanes), settings) //nolint:gosec // the user says which Python
	l.cmd.Stderr = l.tail
	defer func() {
		for _, its := range l.cmd.ExtraFiles {
			_ = its.Close()
		}
	}()
	for range lanes {
		own, its, err := socketPair()
		if err != nil {
			l.closeSockets()
			return nil, fmt.Errorf("a socket for the bridge to %s: %w", engine, err)
		}
		l.lanes = append(l.lanes, &lane{l, own, make([]byte, maxPacket)})
		l.cmd.ExtraFiles = append(l.cmd.ExtraFiles, its)
	}
	l.idle = slices.Clone(l.lanes)
	if err := l.cmd.Start(); err != nil {
		l.closeSockets()
		return nil, fmt.Errorf("%w: the bridge to %s is a Python program, and %w: set the option %s to an interpreter that has omnibus[%s]",
			connector.ErrUnavailable, engine, err, optPython, extra)
	}
	go func() {
		_ = l.cmd.Wait()
		close(l.dead)
		l.closeSockets()
	}()
	a, ok := l.lanes[0].await(ctx)
	err := a.err()
	if errors.Is(err, errBridgeDied) {
		err = fmt.Errorf("%w: the bridge to %s, %s -m omnibus.bridge, does not start: %s: set the option %s to an interpreter that has omnibus[%s]",
			connector.ErrUnavailable, engine, python, l.tail, optPython, extra)
	}
	if !ok {
		err = fmt.Errorf("%w: the bridge to %s did not open its client in time: %w", connector.ErrUnavailable, engine, ctx.Err())
		_ = l.cmd.Process.Kill()
	}
	if err != nil {
		l.stop(0)
		return nil, err
	}
	return l, nil
}

func socketPair() (own *net.UnixConn, its *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socketpair: %w", err)
	}
	file := os.NewFile(uintptr(fds[0]), "bridge") //nolint:gosec // a descriptor
	its = os.NewFile(uintptr(fds[1]), "bridge")   //nolint:gosec // a descriptor
	conn, err := net.FileConn(file)
	_ = file.Close()
	own, ok := conn.(*net.UnixConn)
	if !ok {
		_ = its.Close()
		return nil, nil, fmt.Errorf("a connection over a pair of sockets: %w", err)
	}
	return own, its, nil
}

func (l *link) closeSockets() {
	for _, ln := range l.lanes {
		_ = ln.conn.Close()
	}
}

// takeLane returns the idle lane that was used last: its thread has the warmest caches. The number
// of callers is bounded by the number of lanes.
func (l *link) takeLane() *lane {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := len(l.idle) - 1
	ln := l.idle[last]
	l.idle = l.idle[:last]
	return ln
}

func (l *link) returnLane(ln *lane) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, ln)
}

// ask sends a request; await returns its one answer. Until then the buffer, if there is one,
// belongs to the bridge.
func (ln *lane) ask(op operation, b *buffer, size uint64, text string) {
	var rights []byte
	if b == nil {
		b = &buffer{link: ln.link} // number 0 is none
	} else if b.link != ln.link {
		b.link, b.number = ln.link, ln.link.buffers.Add(1)
		rights = unix.UnixRights(b.fd)
	}
	_, _, _ = ln.conn.WriteMsgUnix(frame(op, b.number, size, text), rights, nil) // if it fails, the bridge is dying
}

// await returns the answer, or false if ctx ends before: the answer is then still to come.
func (ln *lane) await(ctx context.Context) (answer, bool) {
	told := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = ln.conn.SetReadDeadline(time.Unix(0, 1))
		close(told)
	})
	n, err := ln.conn.Read(ln.packet)
	if !stop() {
		<-told
		_ = ln.conn.SetReadDeadline(time.Time{})
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return answer{}, false
	case err != nil || n < headerBytes:
		ln.link.closeSockets()
		<-ln.link.dead
		return answer{bridgeDied: true}, true
	}
	return answer{binary.LittleEndian.Uint32(ln.packet), binary.LittleEndian.Uint64(ln.packet[8:]), string(ln.packet[headerBytes:n]), false}, true
}

func frame(op operation, number uint32, size uint64, text string) []byte {
	packet := binary.LittleEndian.AppendUint32(make([]byte, 0, headerBytes+len(text)), uint32(op))
	packet = binary.LittleEndian.AppendUint32(packet, number)
	packet = binary.LittleEndian.AppendUint64(packet, size)
	return append(packet, text...)
}

// stop asks the bridge to end, in which it removes the values that it put, and kills it after
// patience.
func (l *link) stop(patience time.Duration) {
	for _, ln := range l.lanes {
		_ = ln.conn.CloseWrite()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.dead:
	case <-timer.C:
		_ = l.cmd.Process.Kill()
		<-l.dead
	}
}

// tail keeps the last maxTail bytes that were written.
type tail []byte

const maxTail = 4 << 10

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	*t = append(*t, p...)
	*t = (*t)[max(0, len(*t)-maxTail):]
	return len(p), nil
}

// String returns the last line.
func (t *tail) String() string {
	lines := strings.Split(strings.TrimSpace(string(*t)), "\n")
	return lines[len(lines)-1]
}
