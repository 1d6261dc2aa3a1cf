package bridge

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
)

// The packets are those of the Python module omnibus.bridge.
const (
	headerBytes = 24
	mostPacket  = 64 << 10
	untold      = ^uint64(0)
)

type operation uint32

const (
	opPut operation = iota + 1
	opGet
	opRemove
	opPresent
	opDrop
	opBack
)

func (op operation) String() string {
	return [...]string{"", "put", "get", "remove", "look", "drop", "put back"}[op]
}

const (
	codeOK    = 0
	codeSmall = 8
)

// failures are the errors of codes.
var failures = map[uint32]error{
	2: connector.ErrNotFound, 3: connector.ErrFull, 4: connector.ErrTooLarge, 5: connector.ErrUnavailable,
	6: connector.ErrCorrupt, 7: connector.ErrKey, 9: errTaken, 10: connector.ErrMetadata,
}

// errTaken says that a value was there, so that there is nothing to wait for.
var errTaken = fmt.Errorf("%w, and there will not be", connector.ErrNotFound)

// errGone says that the bridge died with a call under way.
var errGone = errors.New("the bridge died")

// An answer is what became of a call.
type answer struct {
	code uint32
	size uint64
	text string
	gone bool // the bridge, without an answer
}

func (a answer) err() error {
	switch {
	case a.gone:
		return errGone
	case a.code == codeOK || a.code == codeSmall:
		return nil
	case failures[a.code] != nil:
		return fmt.Errorf("%w: %s", failures[a.code], a.text)
	}
	return errors.New("in the bridge: " + a.text)
}

// A link is one bridge, from its start to its death.
type link struct {
	conn *net.UnixConn
	cmd  *exec.Cmd
	tail *tail         // of what it writes to standard error
	dead chan struct{} // closed when the process has ended

	mu      sync.Mutex
	pending map[uint64]chan<- answer
	last    uint64
	buffers uint32
	gone    bool
}

// start starts a bridge, and waits until it has opened its client.
func start(ctx context.Context, python, engine string, settings map[string]any) (*link, error) {
	text, err := json.Marshal(settings)
	if err != nil {
		return nil, fmt.Errorf("the settings of %s: %w", engine, err)
	}
	extra, _, _ := strings.Cut(engine, "-") // of the client package
	own, its, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("a socket for the bridge to %s: %w", engine, err)
	}
	l := &link{conn: own, tail: new(tail), dead: make(chan struct{}), pending: make(map[uint64]chan<- answer)}
	l.cmd = exec.Command(python, "-m", "omnibus.bridge", engine, "3", string(text)) //nolint:gosec // the user says which Python
	l.cmd.ExtraFiles = []*os.File{its}
	l.cmd.Stderr = l.tail
	err = l.cmd.Start()
	_ = its.Close()
	if err != nil {
		_ = own.Close()
		return nil, fmt.Errorf("%w: the bridge to %s is a Python program, and %w: set the option %s to an interpreter that has omnibus[%s]",
			connector.ErrUnavailable, engine, err, optPython, extra)
	}
	opened := make(chan answer, 1)
	l.pending[0] = opened
	go l.receive()
	select {
	case a := <-opened:
		if err = a.err(); errors.Is(err, errGone) {
			err = fmt.Errorf("%w: the bridge to %s, %s -m omnibus.bridge, does not start: %s: set the option %s to an interpreter that has omnibus[%s]",
				connector.ErrUnavailable, engine, python, l.tail, optPython, extra)
		}
	case <-ctx.Done():
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

// receive hands answers over until the bridge is dead.
func (l *link) receive() {
	packet := make([]byte, mostPacket)
	for {
		n, err := l.conn.Read(packet)
		if err != nil || n < headerBytes {
			break
		}
		a := answer{code: binary.LittleEndian.Uint32(packet), size: binary.LittleEndian.Uint64(packet[16:]), text: string(packet[headerBytes:n])}
		id := binary.LittleEndian.Uint64(packet[8:])
		l.mu.Lock()
		c := l.pending[id]
		delete(l.pending, id)
		l.mu.Unlock()
		if c != nil {
			c <- a
		}
	}
	_ = l.conn.Close()
	_ = l.cmd.Wait()
	l.mu.Lock()
	l.gone = true
	for _, c := range l.pending {
		c <- answer{gone: true}
	}
	l.pending = nil
	l.mu.Unlock()
	close(l.dead)
}

// ask sends a question and returns where its one answer comes. The buffer, if there is one, is the bridge's until
// then.
func (l *link) ask(op operation, b *buffer, size uint64, text string) <-chan answer {
	c := make(chan answer, 1)
	var rights []byte
	l.mu.Lock()
	if l.gone {
		l.mu.Unlock()
		c <- answer{gone: true}
		return c
	}
	l.last++
	id := l.last
	l.pending[id] = c
	var number uint32
	if b != nil {
		if b.link != l {
			l.buffers++
			b.link, b.number = l, l.buffers
			rights = unix.UnixRights(b.fd)
		}
		number = b.number
	}
	l.mu.Unlock()
	_, _, _ = l.conn.WriteMsgUnix(frame(op, number, id, size, text), rights, nil) // if it fails, the bridge is dying
	return c
}

// forget tells the bridge that a buffer is dropped.
func (l *link) forget(number uint32) {
	_, _ = l.conn.Write(frame(opDrop, number, 0, 0, ""))
}

func frame(op operation, number uint32, id, size uint64, text string) []byte {
	packet := make([]byte, 0, headerBytes+len(text))
	packet = binary.LittleEndian.AppendUint32(packet, uint32(op))
	packet = binary.LittleEndian.AppendUint32(packet, number)
	packet = binary.LittleEndian.AppendUint64(packet, id)
	packet = binary.LittleEndian.AppendUint64(packet, size)
	return append(packet, text...)
}

// stop ends the bridge, which takes back what it put, and kills it if that takes too long.
func (l *link) stop(patience time.Duration) {
	_ = l.conn.CloseWrite()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-l.dead:
	case <-timer.C:
		_ = l.cmd.Process.Kill()
		<-l.dead
	}
}

// tail keeps the end of what is written.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const mostTail = 4 << 10

// Write implements [io.Writer].
func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-mostTail):]
	return len(p), nil
}

// String returns the last line.
func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return lines[len(lines)-1]
}
