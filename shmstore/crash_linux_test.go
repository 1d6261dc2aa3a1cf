package shmstore

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/messages"
)

// childVariable makes the test binary a reader process instead.
const childVariable = "OMNIBUS_SHMSTORE_TEST_CHILD"

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

// The commands of a parent to its child, each with a handle. The child answers with
// the command.
const (
	askHold  = 'h' // take and keep
	askPin   = 'p' // pin and keep
	askRead  = 'r' // take and release
	askWrite = 'w' // take and write to it, which is fatal
	askAdd   = 'a' // add the segment that comes with it
)

// runChild attaches over descriptor 3 and executes commands until the
// connection ends. A torn object ends it with an error.
func runChild() error {
	f := os.NewFile(3, "parent")
	c, err := net.FileConn(f)
	if err != nil {
		return err
	}
	f.Close()
	conn := c.(*net.UnixConn)
	r, err := Attach(conn)
	if err != nil {
		return err
	}
	var kept []Lease
	request := make([]byte, 1+messages.HandleSize)
	rights := make([]byte, unix.CmsgSpace(4))
	for {
		n, oobn, _, _, err := conn.ReadMsgUnix(request, rights)
		if err != nil || n == 0 {
			return nil //nolint:nilerr // the parent is done
		}
		var h Handle
		if err := h.UnmarshalBinary(request[1:]); err != nil {
			return err
		}
		if request[0] == askAdd {
			fds, _, err := parseControl(rights[:oobn])
			if err == nil {
				err = r.AddSegment(h, fds[0])
			}
			if err == nil {
				_, err = conn.Write(request[:1])
			}
			if err != nil {
				return err
			}
			continue
		}
		take := r.Take
		if request[0] == askPin {
			take = r.Pin
		}
		l, err := take(h)
		if err != nil {
			return err
		}
		if !isSealed(l.Bytes()) {
			return errors.New("torn object")
		}
		switch request[0] {
		case askRead:
			l.Release()
		case askWrite:
			if null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0); err == nil {
				_ = unix.Dup3(int(null.Fd()), 2, 0) // hides the trace of the expected crash
			}
			l.Bytes()[0]++
		default:
			kept = append(kept, l)
		}
		if _, err := conn.Write(request[:1]); err != nil {
			return err
		}
		_ = kept
	}
}

// child is a reader in a process of its own.
type child struct {
	*exec.Cmd
	conn  *net.UnixConn
	pidfd int
	ended bool
}

func startChild(t *testing.T, point string) *child {
	t.Helper()
	ours, theirs := socketPair(t)
	c := &child{Cmd: exec.Command(os.Args[0]), pidfd: -1}
	c.Env = append(os.Environ(), childVariable+"=1", faultpoint.Variable+"="+point)
	c.ExtraFiles = []*os.File{theirs}
	c.Stderr = os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{PidFD: &c.pidfd, Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	theirs.Close()
	c.conn = connOf(t, ours)
	t.Cleanup(func() {
		if !c.ended {
			_ = c.Process.Kill()
			_ = c.Wait()
		}
		if c.pidfd >= 0 {
			unix.Close(c.pidfd)
		}
	})
	return c
}

// awaitDeath waits until the kernel says that the child is dead.
func (c *child) awaitDeath(t *testing.T) syscall.WaitStatus {
	t.Helper()
	const limit = 30 * time.Second
	poll := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
	for deadline := time.Now().Add(limit); ; {
		n, err := unix.Poll(poll, int(limit.Milliseconds()))
		if n == 1 {
			break
		}
		if (err != nil && !errors.Is(err, unix.EINTR)) || time.Now().After(deadline) {
			t.Fatalf("the child does not die: %v", err)
		}
	}
	_ = c.Wait()
	c.ended = true
	return c.ProcessState.Sys().(syscall.WaitStatus)
}

// ask sends a command and waits for the answer.
func (c *child) ask(command byte, h Handle) error { return c.send(command, h, nil) }

// give sends the segment of a large object.
func (c *child) give(h Handle, fd int) error { return c.send(askAdd, h, unix.UnixRights(fd)) }

func (c *child) send(command byte, h Handle, rights []byte) error {
	request, err := h.AppendBinary([]byte{command})
	if err != nil {
		return err
	}
	if _, _, err := c.conn.WriteMsgUnix(request, rights, nil); err != nil {
		return err
	}
	answer := make([]byte, 1)
	if n, err := c.conn.Read(answer); err != nil || n != 1 || answer[0] != command {
		return fmt.Errorf("answer %q, %w", answer[:n], errors.Join(err, errors.New("the child is gone")))
	}
	return nil
}

func putSealed(t *testing.T, s *Store, seed uint64, charge ReaderSet) Handle {
	t.Helper()
	data := make([]byte, 100)
	sealed(data, seed)
	return mustPut(t, s, data, charge)
}

// TestKilledAtFaultpoints kills a reader process at each faultpoint, while
// another reader holds an object. Nothing may be left of the killed reader, and no
// object of the other may change.
func TestKilledAtFaultpoints(t *testing.T) {
	for _, tc := range []struct {
		point    string
		admitted bool
		raced    bool // the death may come before the grant, which then fails
		command  byte
	}{
		{point: "attach-before-ledger"},
		{point: "attach-ledger-sent", admitted: true, raced: true},
		{point: "attach-granted", admitted: true},
		{point: "pin-raised", admitted: true, command: askPin},
		{point: "lease-taken", admitted: true, command: askPin},
		{point: "lease-taken:2", admitted: true, command: askHold},
		{point: "before-release", admitted: true, command: askRead},
	} {
		t.Run(tc.point, func(t *testing.T) {
			s := create(t, small(Shared))
			other := attachHere(t, s)
			kept := putSealed(t, s, 1, Readers(other.ID()))
			lease := mustLease(t, other.Take, kept)

			c := startChild(t, tc.point)
			id, err := s.Admit(c.conn)
			admitted := err == nil
			if admitted != tc.admitted && !tc.raced {
				t.Fatalf("Admit: %v", err)
			}
			if tc.command != 0 {
				var err error
				for i := 0; err == nil; i++ {
					if i == 2 {
						t.Fatal("the child passed its faultpoint")
					}
					err = c.ask(tc.command, putSealed(t, s, 2, Readers(id)))
				}
			}
			if status := c.awaitDeath(t); status.Signal() != syscall.SIGKILL {
				t.Fatalf("the child ended with %v", status)
			}
			if admitted {
				if err := s.RemoveReader(id); err != nil {
					t.Fatal(err)
				}
			}
			wantClean(t, s)
			if left := freeAll(s); left != 1 {
				t.Errorf("%d objects are left, want the one of the other reader", left)
			}
			if !isSealed(lease.Bytes()) {
				t.Error("the other reader's object was torn")
			}
			lease.Release()
			if left := freeAll(s); left != 0 {
				t.Errorf("%d objects are left in the end", left)
			}
		})
	}
}

// TestKilledAtRandom kills readers in the middle of reading, again and again
// in one store.
func TestKilledAtRandom(t *testing.T) {
	const kills = 6
	s := create(t, small(Shared))
	for range kills {
		c := startChild(t, "")
		id, err := s.Admit(c.conn)
		if err != nil {
			t.Fatal(err)
		}
		if id != 1 {
			t.Fatalf("index %d: the index of the dead reader was not assigned again", id)
		}
		go func(after int) { // kill while commands are on their way
			for range after {
				if _, err := unix.Poll([]unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}, 1); err != nil {
					break
				}
			}
			_ = unix.PidfdSendSignal(c.pidfd, unix.SIGKILL, nil, 0)
		}(rand.IntN(20))
		for seed := uint64(0); ; seed++ {
			command := []byte{askRead, askRead, askRead, askRead, askHold, askPin}[rand.IntN(6)]
			data := make([]byte, 64)
			sealed(data, seed)
			h, err := s.Put(data, Readers(id))
			if errors.Is(err, ErrFull) { // it holds all objects
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if c.ask(command, h) != nil {
				break
			}
		}
		if status := c.awaitDeath(t); status.Signal() != syscall.SIGKILL {
			t.Fatalf("the child ended with %v", status)
		}
		if err := s.RemoveReader(id); err != nil {
			t.Fatal(err)
		}
		wantClean(t, s)
		if left := freeAll(s); left != 0 {
			t.Errorf("%d objects are left of a dead reader", left)
		}
	}
}

// TestReaderCannotWrite: writing to a lease in a process other than the
// owner's kills that process, and does not harm the owner.
func TestReaderCannotWrite(t *testing.T) {
	s := create(t, small(Shared))
	c := startChild(t, "")
	id, err := s.Admit(c.conn)
	if err != nil {
		t.Fatal(err)
	}
	h := putSealed(t, s, 1, Readers(id, 0))
	if err := c.ask(askWrite, h); err == nil {
		t.Error("the child wrote to the arena and lives")
	}
	c.awaitDeath(t)
	if err := s.RemoveReader(id); err != nil {
		t.Fatal(err)
	}
	l := mustLease(t, s.Local().Take, h)
	defer l.Release()
	if !isSealed(l.Bytes()) {
		t.Error("the child's write arrived")
	}
}
