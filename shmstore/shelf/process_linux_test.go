package shelf

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary a process that takes.
const roleVariable = "OMNIBUS_SHELF_TEST_ROLE"

// Such a process has these descriptors.
const (
	fdShelf  = 3 + iota // an open file description of its own
	fdReport            // the numbers that it has got, 8 bytes each
	fdEnd               // ends with the parent, or when it wants the process to end
)

const childTag = 5

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		if err := runRole(role); err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// runRole takes what there is, number by number: "take/FROM/TO" says what it got, and
// stays; "die/FROM/TO" is killed when it has the last, and says nothing.
func runRole(arg string) error {
	var from, to uint64
	role, numbers, _ := strings.Cut(arg, "/")
	if _, err := fmt.Sscanf(numbers, "%d/%d", &from, &to); err != nil {
		return err
	}
	t, err := Open(fdShelf, testFirst)
	if err != nil {
		return err
	}
	report := os.NewFile(fdReport, "report")
	for n := from; n <= to; n++ {
		if _, ok := t.Take(n, childTag); !ok {
			continue
		}
		if role == "die" {
			continue
		}
		if err := binary.Write(report, binary.LittleEndian, n); err != nil {
			return err
		}
	}
	if role == "die" {
		return unix.Kill(os.Getpid(), unix.SIGKILL)
	}
	report.Close()
	_, err = io.Copy(io.Discard, os.NewFile(fdEnd, "end"))
	return err
}

type child struct {
	*exec.Cmd
	*Witness
	report *bufio.Reader
	stderr strings.Builder
	end    func() // asks it to end
}

func startChild(tb testing.TB, s *Shelf, role string, from, to uint64) *child {
	tb.Helper()
	own := os.NewFile(uintptr(describe(tb, s)), "shelf")
	kept, err := unix.FcntlInt(own.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		tb.Fatal(err)
	}
	report, theirReport, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	theirEnd, end, err := os.Pipe()
	if err != nil {
		tb.Fatal(err)
	}
	c := &child{Cmd: exec.Command(os.Args[0]), Witness: NewWitness(kept, testFirst), report: bufio.NewReader(report), end: func() { end.Close() }}
	c.Env = append(os.Environ(), fmt.Sprintf("%s=%s/%d/%d", roleVariable, role, from, to), "GORACE=atexit_sleep_ms=0")
	c.ExtraFiles = []*os.File{own, theirReport, theirEnd}
	c.Stderr = &c.stderr
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		tb.Fatal(err)
	}
	for _, f := range c.ExtraFiles {
		f.Close()
	}
	tb.Cleanup(func() {
		_ = c.Process.Kill()
		_ = c.Wait()
		report.Close()
		end.Close()
		if out := c.stderr.String(); out != "" {
			tb.Errorf("the child said: %s", out)
		}
	})
	return c
}

// next is a number that the child has got, until it has no more.
func (c *child) next() (number uint64, ok bool) {
	err := binary.Read(c.report, binary.LittleEndian, &number)
	return number, err == nil
}

// TestDeadHasIt: what a process had that was killed before it said so is nobody's until
// its witness is closed, and then anybody's.
func TestDeadHasIt(t *testing.T) {
	s := newShelf(t)
	var numbers []uint64
	for range 20 {
		numbers = append(numbers, put(t, s, childTag))
	}
	c := startChild(t, s, "die", numbers[0], numbers[9])
	_ = c.Wait()
	if status := c.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGKILL {
		t.Fatalf("the child ended with %v", c.ProcessState)
	}
	one, keeper := taker(t, s), taker(t, s)
	for i, n := range numbers {
		had := i < 10
		if !c.Alone(n) || keeper.Free(n) == had {
			t.Errorf("value %d: alone %v, free %v", i, c.Alone(n), keeper.Free(n))
		}
		if got := one.has(n, childTag) || keeper.Claim(n); got == had {
			t.Errorf("value %d before the witness is closed: got %v", i, got)
		}
	}
	if n := numbers[0]; !c.Share(n) || !keeper.Share(n) {
		t.Error("the witness does not hand over what the dead process had")
	}
	c.Close()
	for i, n := range numbers[:10] {
		if got := one.has(n, childTag); got != (i > 0) {
			t.Errorf("value %d after the witness is closed: got %v", i, got)
		}
	}
}

// TestProcesses: several processes take from one shelf, and some are killed meanwhile.
// Nothing is got twice, and what is not got is what the dead had, until that is given up.
func TestProcesses(t *testing.T) {
	s := newShelf(t)
	const values, processes = Slots, 5
	first := put(t, s, childTag)
	last := first
	for range values - 1 {
		last = put(t, s, childTag)
	}
	children := make([]*child, processes)
	for i := range children {
		children[i] = startChild(t, s, "take", first, last)
	}
	owner := make(map[uint64]*child)
	note := func(c *child, number uint64) {
		t.Helper()
		if owner[number] != nil {
			t.Errorf("%#x was got twice", number)
		}
		owner[number] = c
	}
	for i, c := range children[:processes/2] {
		for range 3 * i { // one perhaps before it has begun, another when it has some
			number, ok := c.next()
			if !ok {
				break
			}
			note(c, number)
		}
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range children {
		for number, ok := c.next(); ok; number, ok = c.next() {
			note(c, number)
		}
	}
	for _, c := range children[:processes/2] {
		_ = c.Wait()
	}
	one := taker(t, s)
	for n := first; n <= last; n++ {
		if one.has(n, childTag) {
			t.Errorf("%#x was taken by nobody", n)
		}
		if c := owner[n]; c != nil && !c.Alone(n) {
			t.Errorf("%#x is somebody else's", n)
		}
	}
	for _, c := range children[:processes/2] {
		c.Close()
	}
	for n := first; n <= last; n++ {
		dead := owner[n] == nil || owner[n] == children[0] || owner[n] == children[1]
		if got := one.has(n, childTag); got != dead {
			t.Errorf("%#x, of a process that is dead: %v: got %v", n, dead, got)
		}
	}
	for _, c := range children[processes/2:] {
		c.end()
		if err := c.Wait(); err != nil {
			t.Error(err)
		}
		c.Close()
	}
	for n := first; n <= last; n++ {
		if !one.Free(n) {
			t.Errorf("%#x is had by somebody when all are gone", n)
		}
	}
}
