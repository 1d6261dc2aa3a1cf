package keyed_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/codec"
	"github.com/omnibus-runtime/omnibus/shmstore"
	"github.com/omnibus-runtime/omnibus/shmstore/keyed"
)

// roleVariable makes the test binary another process. Its value has the role and its arguments.
const roleVariable = "OMNIBUS_KEYED_TEST_ROLE"

func TestMain(m *testing.M) {
	role, arg, _ := strings.Cut(os.Getenv(roleVariable), " ")
	play, known := map[string]func(string) error{"read": readRole, "write": writeRole, "linger": lingerRole, "stranger": strangerRole, "example": exampleReader, "bench": benchRole}[role]
	switch {
	case role == "":
		os.Exit(m.Run())
	case !known:
		play = func(string) error { return errors.New("no such role") }
	}
	if err := play(arg); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		os.Exit(1)
	}
}

// answer says ok with more, or the name of an error.
func answer(err error, more ...any) {
	for _, named := range []error{
		keyed.ErrOwnerGone, keyed.ErrInUse, shmstore.ErrTooManyReaders, shmstore.ErrNoDebt, shmstore.ErrStale, shmstore.ErrCorrupt,
	} {
		if errors.Is(err, named) {
			err = named
			break
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stdout, err)
		return
	}
	fmt.Fprintln(os.Stdout, append([]any{"ok"}, more...)...)
}

// same is the byte that all bytes of a value are.
func same(b []byte) string {
	for _, each := range b {
		if each != b[0] {
			return "torn"
		}
	}
	return fmt.Sprint(b[0])
}

// readRole dials a path, or opens descriptor 3, and executes commands.
func readRole(path string) error {
	var r *keyed.Reader
	var err error
	if path == "" {
		var conn net.Conn
		if conn, err = net.FileConn(os.NewFile(3, "store")); err == nil {
			r, err = keyed.Open(conn.(*net.UnixConn))
		}
	} else {
		r, err = keyed.Dial(path)
	}
	answer(err)
	if err != nil {
		return nil //nolint:nilerr // it was answered
	}
	held := make(map[string]*keyed.Value)
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		what, arg, _ := strings.Cut(asked.Text(), " ")
		var h shmstore.Handle
		b, err := hex.DecodeString(arg)
		if err == nil && len(b) > 0 {
			err = h.UnmarshalBinary(b)
		}
		if err != nil {
			return err
		}
		switch what {
		case "hold":
			v, err := r.Get(h)
			if held[arg] = v; err == nil {
				answer(nil, same(v.Bytes()))
			} else {
				answer(err)
			}
		case "look":
			answer(nil, same(held[arg].Bytes()))
		case "release":
			held[arg].Release()
			answer(nil)
		case "drop":
			answer(r.Drop(h))
		case "await":
			for !errors.Is(r.Drop(h), keyed.ErrOwnerGone) {
				runtime.Gosched()
			}
			answer(nil)
		case "close":
			answer(r.Close())
		case "fork":
			answer(forkRole())
		}
	}
	return nil
}

// forkRole starts a process that has all connections of this one, and outlives it.
func forkRole() error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"=linger")
	cmd.Stdin = os.Stdin
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if to, linkErr := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && linkErr == nil && strings.HasPrefix(to, "socket:") && !listens(fd) {
			cmd.ExtraFiles = append(cmd.ExtraFiles, os.NewFile(uintptr(fd), to))
		}
	}
	started, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err == nil {
		_, err = started.Read(make([]byte, 1))
	}
	return err
}

func listens(fd int) bool {
	n, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	return err == nil && n != 0
}

// lingerRole lives until no process has the other end of its input.
func lingerRole(string) error {
	fmt.Fprintln(os.Stdout, "ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// writeRole makes a store that listens at a path, and executes commands.
func writeRole(path string) error {
	s, err := keyed.Create(keyed.Options{Store: shmstore.Options{ArenaBytes: 64 * kib}, Serializer: codec.RawSerializer{}})
	if err == nil {
		err = s.Listen(path)
	}
	answer(err)
	if err != nil {
		return nil //nolint:nilerr // it was answered
	}
	for asked := bufio.NewScanner(os.Stdin); asked.Scan(); {
		if asked.Text() == "fork" {
			answer(forkRole())
			continue
		}
		var n byte
		if _, err := fmt.Sscan(asked.Text(), &n); err != nil {
			return err
		}
		h, err := s.Put(asked.Text(), block(n, kib))
		b, _ := h.MarshalBinary()
		answer(err, hex.EncodeToString(b))
	}
	return s.Close()
}

// strangerRole attaches without Dial's checks of the path.
func strangerRole(path string) error {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err == nil {
		_, err = keyed.Open(conn)
	}
	answer(err)
	return nil
}

// played is another process that runs a role.
type played struct {
	*exec.Cmd
	t   testing.TB
	in  io.WriteCloser
	out *bufio.Scanner
}

// start starts a role, and returns its first line of output.
func start(t testing.TB, role string, files ...*os.File) (*played, string) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = files
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &played{Cmd: cmd, t: t, in: in, out: bufio.NewScanner(out)}
	t.Cleanup(func() {
		p.kill()
		_ = in.Close()
		_ = out.Close()
	})
	said := p.next()
	return p, said
}

func (p *played) next() string {
	p.t.Helper()
	if !p.out.Scan() {
		p.t.Fatalf("the process has ended: %v", p.out.Err())
	}
	return p.out.Text()
}

func (p *played) ask(what string, h shmstore.Handle) string {
	p.t.Helper()
	b, _ := h.MarshalBinary() // never fails
	if h.IsZero() {
		b = nil
	}
	return p.askText(strings.TrimSpace(what + " " + hex.EncodeToString(b)))
}

func (p *played) askText(what string) string {
	p.t.Helper()
	if _, err := fmt.Fprintln(p.in, what); err != nil {
		p.t.Fatal(err)
	}
	return p.next()
}

func (p *played) want(got, want string) {
	p.t.Helper()
	if got != want {
		p.t.Errorf("the other process answers %q, want %q", got, want)
	}
}

// kill kills the process with SIGKILL, and returns when it is dead. A process that it has started lives on until the
// end of the test.
func (p *played) kill() {
	_ = p.Process.Kill() // it may be dead
	_, _ = p.Process.Wait()
}

// path returns the path of a socket, in a folder that is made when a store listens.
func path(t testing.TB) string { return filepath.Join(t.TempDir(), "f", "s") }

// dial starts a process that dials a store, from the path at which that listens.
func dial(t *testing.T, path string) *played {
	t.Helper()
	p, said := start(t, "read "+path)
	if said != "ok" {
		t.Fatal(said)
	}
	return p
}

// awaitReaders returns when the store has so many readers.
func awaitReaders(s *keyed.Store, n int) {
	for bits.OnesCount64(uint64(s.Stats().Readers)) != n+1 { // with the local one
		runtime.Gosched()
	}
}

func listening(t *testing.T, readers int) (*keyed.Store, string) {
	t.Helper()
	s, at := storeOf(t, shmstore.Options{ArenaBytes: 64 * kib, MaxReaders: readers}), path(t)
	if err := s.Listen(at); err != nil {
		t.Fatal(err)
	}
	return s, at
}

// TestListen: processes that dial a path read the values they are charged for, until they close.
func TestListen(t *testing.T) {
	s, at := listening(t, 2)
	a, b := dial(t, at), dial(t, at)
	awaitReaders(s, 2)
	h := put(t, s, "k", block(1, kib))
	for _, p := range []*played{a, b} {
		p.want(p.ask("hold", h), "ok 1")
	}
	a.want(a.ask("release", h), "ok")
	a.want(a.ask("hold", h), shmstore.ErrNoDebt.Error())
	if freed := s.FreeUnused(math.MaxInt64); freed != 0 {
		t.Errorf("%d bytes were freed that are read", freed)
	}
	b.want(b.ask("release", h), "ok")
	b.want(b.ask("close", shmstore.Handle{}), "ok")
	awaitReaders(s, 1)
	h = put(t, s, "l", block(2, kib)) // charges one reader only
	a.want(a.ask("drop", h), "ok")
	if freed := s.FreeUnused(math.MaxInt64); freed < 2*kib {
		t.Errorf("%d bytes were freed, want two objects of %d", freed, kib)
	}
}

// TestTooManyReaders: a process beyond the limit gets ErrTooManyReaders.
func TestTooManyReaders(t *testing.T) {
	s, at := listening(t, 1)
	a := dial(t, at)
	_, said := start(t, "read "+at)
	a.want(said, shmstore.ErrTooManyReaders.Error())
	a.kill()
	awaitReaders(s, 0)
	b := dial(t, at)
	b.want(b.ask("drop", put(t, s, "k", block(1, kib))), "ok")
}

// TestReaderKilled: the objects of a killed process are freed; those of others stay. It does not matter
// that a child of the killed process has its connection, nor how the child got it.
func TestReaderKilled(t *testing.T) {
	for name, begin := range map[string]func(t *testing.T, s *keyed.Store) *played{
		"dialed": func(t *testing.T, s *keyed.Store) *played {
			at := path(t)
			if err := s.Listen(at); err != nil {
				t.Fatal(err)
			}
			return dial(t, at)
		},
		"handed over": func(t *testing.T, s *keyed.Store) *played {
			ends := connPair(t)
			theirs, err := ends[1].File()
			if err != nil {
				t.Fatal(err)
			}
			admitted := make(chan error, 1)
			go func() {
				_, err := s.Admit(ends[0])
				admitted <- err
			}()
			p, said := start(t, "read", theirs)
			if err := errors.Join(<-admitted, theirs.Close(), ends[1].Close()); err != nil || said != "ok" {
				t.Fatal(said, err)
			}
			return p
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, readers, _ := cache(t, 64*kib, 1)
			p := begin(t, s)
			awaitReaders(s, 2)
			reading, owed, shared := put(t, s, "reading", block(1, kib)), put(t, s, "owed", block(2, kib)), put(t, s, "shared", block(3, kib))
			read(t, readers[0], reading, block(1, kib))
			read(t, readers[0], owed, block(2, kib))
			v := get(t, readers[0], shared)
			p.want(p.ask("hold", reading), "ok 1")
			p.want(p.ask("hold", shared), "ok 3")
			if freed := s.FreeUnused(math.MaxInt64); freed != 0 {
				t.Errorf("%d bytes were freed that a process reads, or is to read", freed)
			}
			p.want(p.ask("fork", shmstore.Handle{}), "ok")
			p.kill()
			awaitReaders(s, 1)
			s.FreeUnused(math.MaxInt64)
			if s.IsCached("reading") || s.IsCached("owed") || !s.IsCached("shared") {
				t.Error("what a dead reader had stays, or what another has went")
			}
			if !bytes.Equal(v.Bytes(), block(3, kib)) {
				t.Error("a value changed while it was read")
			}
			v.Release()
		})
	}
}

// TestTwoWriters: a path at which a store listens is refused to another store, in this and in another process.
func TestTwoWriters(t *testing.T) {
	s, at := listening(t, 0)
	wantErr(t, "Listen", storeOf(t, shmstore.Options{ArenaBytes: 64 * kib}).Listen(at), keyed.ErrInUse)
	p, said := start(t, "write "+at)
	p.want(said, keyed.ErrInUse.Error())
	r := dial(t, at)
	awaitReaders(s, 1)
	r.want(r.ask("drop", put(t, s, "k", block(1, kib))), "ok")
}

// TestWriterKilled: readers keep the values that they have got, and further gets return ErrOwnerGone, although a child of
// the writer has their connections. A new store at the path needs a new Dial, and knows no handle of the old
// one.
func TestWriterKilled(t *testing.T) {
	at := path(t)
	w, said := start(t, "write "+at)
	w.want(said, "ok")
	r, err := keyed.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	p := dial(t, at)
	var handles [2]shmstore.Handle
	for i := range handles {
		_, text, _ := strings.Cut(w.askText(fmt.Sprint(i+1)), " ")
		b, err := hex.DecodeString(text)
		if err = errors.Join(err, handles[i].UnmarshalBinary(b)); err != nil {
			t.Fatal(err)
		}
	}
	v := get(t, r, handles[0])
	p.want(p.ask("hold", handles[0]), "ok 1")
	w.want(w.askText("fork"), "ok") // the child keeps the connections open
	w.kill()
	p.want(p.ask("await", shmstore.Handle{}), "ok")
	p.want(p.ask("hold", handles[1]), keyed.ErrOwnerGone.Error())
	p.want(p.ask("look", handles[0]), "ok 1")
	for err = error(nil); !errors.Is(err, keyed.ErrOwnerGone); _, err = r.Get(shmstore.Handle{}) {
		runtime.Gosched()
	}
	if !bytes.Equal(v.Bytes(), block(1, kib)) {
		t.Error("a value changed when its writer died")
	}
	_, err = keyed.Dial(at)
	wantErr(t, "Dial of a path that a dead process has left", err, keyed.ErrOwnerGone)

	again, said := start(t, "write "+at)
	again.want(said, "ok")
	fresh, err := keyed.Dial(at)
	if err != nil {
		t.Fatal(err)
	}
	_, err = fresh.Get(handles[1])
	wantErr(t, "a handle of the store before", err, shmstore.ErrCorrupt)
	if err == nil || !strings.Contains(err.Error(), "another store") {
		t.Errorf("a handle of the store before: %v", err)
	}
	v.Release()
	for _, r := range []*keyed.Reader{r, fresh} {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestCloseEndsReaders: readers of a closed store get ErrOwnerGone, and the path
// is free.
func TestCloseEndsReaders(t *testing.T) {
	s, at := listening(t, 0)
	p := dial(t, at)
	awaitReaders(s, 1)
	h, owed := put(t, s, "k", block(1, kib)), put(t, s, "l", block(2, kib))
	p.want(p.ask("hold", h), "ok 1")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	p.want(p.ask("await", shmstore.Handle{}), "ok")
	p.want(p.ask("drop", owed), keyed.ErrOwnerGone.Error())
	p.want(p.ask("look", h), "ok 1")
	if _, err := os.Lstat(at); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket: %v", err)
	}
	wantErr(t, "Listen", s.Listen(at), shmstore.ErrClosed)
	ends := connPair(t)
	_, err := s.Admit(ends[0])
	wantErr(t, "Admit", err, shmstore.ErrClosed)
	_, err = keyed.Open(ends[1])
	wantErr(t, "Open", err, keyed.ErrOwnerGone)
	wantErr(t, "Close", s.Close(), nil)
}

// TestStrangersAreRefused: a process of another user becomes no reader, even if the mode of the socket admits it.
func TestStrangersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("another user's process needs root")
	}
	s, at := listening(t, 0)
	for dir := filepath.Dir(at); dir != os.TempDir(); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // the other user is to reach the socket
			t.Fatal(err)
		}
	}
	for mode, want := range map[os.FileMode]string{0o600: "permission denied", 0o666: keyed.ErrOwnerGone.Error()} {
		if err := os.Chmod(at, mode); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), roleVariable+"=stranger "+at)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), want) {
			t.Errorf("mode %v: %q, %v, want %s", mode, out, err, want)
		}
	}
	if n := bits.OnesCount64(uint64(s.Stats().Readers)); n != 1 {
		t.Errorf("%d readers", n-1)
	}
}
