package pool

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/cudaipc"
	"github.com/omnibus-runtime/omnibus/cudaipc/emul"
	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/messages"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// childVariable makes the test binary a reader process.
const childVariable = "OMNIBUS_POOL_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		if err := runChild(); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The commands of a parent, each with a handle. The child answers with the command after it has
// checked the contents of both memories.
const (
	askArena   = 'a' // import the arena that comes with it
	askTake    = 't' // take and keep
	askPin     = 'p' // pin and keep
	askRead    = 'r' // take and release
	askLook    = 'l' // check all kept objects
	askRelease = 'd' // release the oldest kept object
)

// place is the payload of an object with a chunk: the chunk's position, and the seed of its
// contents.
type place struct {
	Arena         uint32
	Bytes         uint32
	Offset        int64
	Seed          uint64
	Unused, Check uint64 // the last field is its first, inverted
}

func (p place) encode(b []byte) {
	p.Check = ^uint64(p.Arena)
	if _, err := binary.Encode(b, binary.NativeEndian, p); err != nil {
		panic(err)
	}
}

func decodePlace(b []byte) (p place, err error) {
	if _, err = binary.Decode(b, binary.NativeEndian, &p); err == nil && p.Check != ^uint64(p.Arena) {
		err = errors.New("torn object")
	}
	return p, err
}

// mover copies between a device and the host.
type mover struct {
	stream cudaipc.Stream
	buffer []byte
}

func newMover(dev cudaipc.Device) (*mover, error) {
	buffer, err := unix.Mmap(-1, 0, minArenaBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, err
	}
	stream, err := dev.NewStream()
	return &mover{stream: stream, buffer: buffer}, err
}

func (m *mover) close() error { return errors.Join(m.stream.Close(), unix.Munmap(m.buffer)) }

func contents(b []byte, seed uint64) {
	for i := range b {
		seed = seed*6364136223846793005 + 1442695040888963407
		b[i] = byte(seed >> 56)
	}
}

func (m *mover) do(ops ...cudaipc.Op) error {
	if err := m.stream.Submit(ops...); err != nil {
		return err
	}
	ctx, cancel := contextWithLimit()
	defer cancel()
	return m.stream.Synchronize(ctx)
}

// write fills a chunk, and writes its ready word.
func (m *mover) write(c Chunk, seed uint64) error {
	contents(m.buffer[:c.Bytes], seed)
	return m.do(
		cudaipc.Op{Kind: cudaipc.OpCopy, Dst: c.Ptr, Src: cudaipc.HostPtr(m.buffer), Bytes: c.Bytes},
		cudaipc.Op{Kind: cudaipc.OpWrite, Word: c.Ready, Value: c.Generation},
	)
}

// look compares a chunk with the contents of its seed.
func (m *mover) look(at cudaipc.Ptr, sizeBytes int64, seed uint64) error {
	if sizeBytes == 0 {
		return nil
	}
	got := m.buffer[:sizeBytes]
	if err := m.do(cudaipc.Op{Kind: cudaipc.OpCopy, Dst: cudaipc.HostPtr(got), Src: at, Bytes: sizeBytes}); err != nil {
		return err
	}
	want := make([]byte, sizeBytes)
	contents(want, seed)
	if !bytes.Equal(want, got) {
		return errors.New("torn chunk")
	}
	return nil
}

// reader is the child: it attaches over descriptor 3 and executes the parent's commands.
type reader struct {
	*shmstore.Reader
	conn   *net.UnixConn
	device cudaipc.Device
	mover  *mover
	arenas map[uint32]cudaipc.Arena
	kept   []shmstore.Lease
}

func runChild() error {
	f := os.NewFile(3, "parent")
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	r := &reader{conn: c.(*net.UnixConn), arenas: make(map[uint32]cudaipc.Arena)}
	driver, err := emul.New(emul.Options{GranularityBytes: 4096})
	if err == nil {
		r.device, err = driver.Open(cudaipc.UUID{})
	}
	if err == nil {
		r.mover, err = newMover(r.device)
	}
	if err == nil {
		r.Reader, err = shmstore.Attach(r.conn)
	}
	if err != nil {
		return err
	}
	request, rights := make([]byte, 1+messages.HandleSize), make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := r.conn.ReadMsgUnix(request, rights)
		if err != nil || n == 0 {
			return nil //nolint:nilerr // the parent has closed the connection
		}
		var h shmstore.Handle
		if err := h.UnmarshalBinary(request[1:]); err != nil {
			return err
		}
		if err := r.answer(request[0], h, rights[:oobn]); err != nil {
			return err
		}
		if _, err := r.conn.Write(request[:1]); err != nil {
			return err
		}
	}
}

func (r *reader) answer(command byte, h shmstore.Handle, rights []byte) error {
	switch command {
	case askArena:
		return r.importArena(h.Slot, int64(h.Size), rights)
	case askLook:
		for i := range r.kept {
			if err := r.look(&r.kept[i]); err != nil {
				return err
			}
		}
		return nil
	case askRelease:
		r.kept[0].Release()
		r.kept = r.kept[1:]
		return nil
	}
	take := r.Take
	if command == askPin {
		take = r.Pin
	}
	lease, err := take(h)
	if err == nil {
		err = r.look(&lease)
	}
	if err != nil {
		return err
	}
	if command == askRead {
		lease.Release()
	} else {
		r.kept = append(r.kept, lease)
	}
	return nil
}

func (r *reader) importArena(number uint32, sizeBytes int64, rights []byte) error {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return err
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return err
	}
	defer unix.Close(fds[0])
	r.arenas[number], err = r.device.ImportArena(fds[0], sizeBytes)
	return err
}

// look compares both memories of an object with the contents of its seed.
func (r *reader) look(lease *shmstore.Lease) error {
	p, err := decodePlace(lease.Bytes())
	if err != nil {
		return err
	}
	return r.mover.look(r.arenas[p.Arena].Base()+cudaipc.Ptr(p.Offset), int64(p.Bytes), p.Seed)
}

// child is the parent's side of a reader process.
type child struct {
	*exec.Cmd
	conn  *net.UnixConn
	pidfd int
	ended bool
}

func startChild(t *testing.T, point string) *child {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "ours"), os.NewFile(uintptr(fds[1]), "theirs")
	defer ours.Close()
	defer theirs.Close()
	c := &child{Cmd: exec.Command(os.Args[0]), pidfd: -1}
	c.Env = append(os.Environ(), childVariable+"=1", faultpoint.Variable+"="+point)
	c.ExtraFiles = []*os.File{theirs}
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{PidFD: &c.pidfd, Pdeathsig: syscall.SIGKILL}
	conn, err := net.FileConn(ours)
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	c.conn = conn.(*net.UnixConn)
	t.Cleanup(func() {
		if !c.ended {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		c.conn.Close()
		if c.pidfd >= 0 {
			unix.Close(c.pidfd)
		}
	})
	return c
}

// awaitDeath waits until the kernel reports that the child was killed.
func (c *child) awaitDeath(t *testing.T) {
	t.Helper()
	poll := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(limit.Milliseconds()))
		if n == 1 {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatalf("the child does not die: %v", err)
		}
	}
	_ = c.Wait()
	c.ended = true
	if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != syscall.SIGKILL {
		t.Fatalf("the child ended with %v", status)
	}
}

// ask sends a command and waits for the answer.
func (c *child) ask(command byte, h shmstore.Handle, rights ...int) error {
	request, err := h.AppendBinary([]byte{command})
	if err != nil {
		return err
	}
	var oob []byte
	if len(rights) > 0 {
		oob = unix.UnixRights(rights...)
	}
	if _, _, err := c.conn.WriteMsgUnix(request, oob, nil); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if n, err := c.conn.Read(answer); err != nil || n != 1 || answer[0] != command {
		return fmt.Errorf("answer %q, %w", answer[:n], errors.Join(err, errors.New("the child is gone")))
	}
	return nil
}

// limit ends a test that hangs.
const limit = 30 * time.Second
