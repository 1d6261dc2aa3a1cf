package shmstore

import (
	"bytes"
	"errors"
	"net"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// connPair returns the two ends of a connection that keeps message bounds.
func connPair(t testing.TB) (owner, reader *net.UnixConn) {
	t.Helper()
	ours, theirs := socketPair(t)
	return connOf(t, ours), connOf(t, theirs)
}

func socketPair(t testing.TB) (ours, theirs *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(fds[0]), "owner"), os.NewFile(uintptr(fds[1]), "reader")
}

func connOf(t testing.TB, f *os.File) *net.UnixConn {
	t.Helper()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	t.Cleanup(func() { c.Close() })
	return c.(*net.UnixConn)
}

// attachHere makes a reader in this process that attaches like one of another process.
func attachHere(t testing.TB, s *Store) *Reader {
	t.Helper()
	owner, reader := connPair(t)
	type result struct {
		r   *Reader
		err error
	}
	attached := make(chan result, 1)
	go func() {
		r, err := Attach(reader)
		attached <- result{r, err}
	}()
	id, err := s.Admit(owner)
	if err != nil {
		t.Fatal(err)
	}
	got := <-attached
	if got.err != nil {
		t.Fatal(got.err)
	}
	if got.r.ID() != id || got.r.geo != s.geo {
		t.Fatalf("the reader is %d of %+v, the owner says %d of %+v", got.r.ID(), got.r.geo, id, s.geo)
	}
	return got.r
}

func TestAttach(t *testing.T) {
	s := create(t, small(Shared))
	r := attachHere(t, s)
	h := mustPut(t, s, content(100, 1), Readers(r.ID()))
	pulled := mustPut(t, s, content(200, 2), 0)
	for _, take := range []func(Handle) (Lease, error){r.Take, r.Pin} {
		l := mustLease(t, take, h)
		if !bytes.Equal(l.Bytes(), content(100, 1)) {
			t.Error("the bytes are not those that were put")
		}
		l.Release()
	}
	pin := mustLease(t, r.Pin, pulled)
	if freed := s.FreeUnused(); freed != 100 {
		t.Errorf("%d bytes were freed, want those of the object that was read", freed)
	}
	wantError(t, "Close with a lease", r.Close(), ErrBusy)
	if !bytes.Equal(pin.Bytes(), content(200, 2)) {
		t.Error("the bytes changed under a pin")
	}
	rang := false
	r.OnRoom(func() { rang = true })
	s.WantRoom(true)
	pin.Release()
	if !rang {
		t.Error("the release did not press the doorbell")
	}
	for range 2 {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
	_, err := r.Take(h)
	wantError(t, "Take after Close", err, ErrClosed)
	if err := s.RemoveReader(r.ID()); err != nil {
		t.Fatal(err)
	}
}

// TestOwnerGone: the objects that a reader holds outlive the store.
func TestOwnerGone(t *testing.T) {
	s := create(t, small(Shared))
	r := attachHere(t, s)
	l := mustLease(t, r.Take, mustPut(t, s, content(100, 1), Readers(r.ID())))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(l.Bytes(), content(100, 1)) {
		t.Error("the bytes are gone with the owner")
	}
	l.Release()
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestSeals: a reader cannot write to the store's segments, nor take them away.
func TestSeals(t *testing.T) {
	s := create(t, small(Shared))
	r := attachHere(t, s)
	defer r.Close()
	for i, name := range []string{"arena", "directory", "account"} {
		seg := r.segments[i]
		if _, err := unix.Pwrite(seg.fd, []byte{1}, 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: write: %v", name, err)
		}
		for _, size := range []int64{0, 1 << 20} {
			if err := unix.Ftruncate(seg.fd, size); !errors.Is(err, unix.EPERM) {
				t.Errorf("%s: truncate to %d: %v", name, size, err)
			}
		}
		if _, err := unix.Mmap(seg.fd, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: map writable: %v", name, err)
		}
		if err := unix.Mprotect(seg.data, unix.PROT_READ|unix.PROT_WRITE); !errors.Is(err, unix.EACCES) {
			t.Errorf("%s: make the mapping writable: %v", name, err)
		}
		if err := unix.Fallocate(seg.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, pageBytes); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: punch a hole: %v", name, err)
		}
	}
}

// openDescriptors counts the descriptors of this process.
func openDescriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// ledgerFD makes a memfd that differs from a ledger in one respect.
func ledgerFD(t *testing.T, offer message, size, allocated int64, seals int, spoil func(*superblock)) int {
	t.Helper()
	fd, err := openMemfd("hostile")
	if err != nil {
		t.Fatal(err)
	}
	sb := superblock{kind: kindLedger, reader: offer.reader, geometry: offer.geometry}
	if spoil != nil {
		spoil(&sb)
	}
	b := sb.encode()
	if err := unix.Ftruncate(fd, size); err != nil {
		t.Fatal(err)
	}
	if allocated > 0 {
		if err := unix.Fallocate(fd, 0, 0, allocated); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := unix.Pwrite(fd, b[:], 0); err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		t.Fatal(err)
	}
	return fd
}

// TestHostileReaders: for every invalid message of a peer, Admit fails with a typed error,
// and nothing of the peer stays in this process.
func TestHostileReaders(t *testing.T) {
	opts := small(Shared)
	opts.Slots = 1024 // a ledger of several pages
	s := create(t, opts)
	size := int64(ledgerBytes(opts.Slots))
	// sendLedger answers the offer with a ledger made by ledger.
	sendLedger := func(ledger func(offer message) []int) func(*testing.T, *net.UnixConn) {
		return func(t *testing.T, conn *net.UnixConn) {
			if err := send(conn, message{kind: messageHello, pid: 1}); err != nil {
				t.Error(err)
			}
			offer, _, err := receive(conn, messageGeometry, 0)
			if err != nil {
				t.Error(err)
				return
			}
			fds := ledger(offer.message)
			if err := send(conn, message{kind: messageLedger, geometry: geometry{store: offer.store}}, fds...); err != nil {
				t.Error(err)
			}
			closeAll(fds)
		}
	}
	for name, peer := range map[string]func(*testing.T, *net.UnixConn){
		"hangs up": func(_ *testing.T, conn *net.UnixConn) { conn.Close() },
		"talks nonsense": func(_ *testing.T, conn *net.UnixConn) {
			_, _ = conn.Write([]byte("hello"))
		},
		"hangs up after hello": func(_ *testing.T, conn *net.UnixConn) {
			_ = send(conn, message{kind: messageHello, pid: 1})
			conn.Close()
		},
		"sends descriptors with hello": func(t *testing.T, conn *net.UnixConn) {
			_ = send(conn, message{kind: messageHello, pid: 1}, 0, 1, 2, 0, 1, 2)
		},
		"sends descriptors with nothing": func(t *testing.T, conn *net.UnixConn) {
			raw, err := conn.SyscallConn()
			var sendErr error
			if err == nil {
				err = raw.Control(func(socket uintptr) { sendErr = sendRightsAlone(socket, 0, 1, 2) })
			}
			if err := errors.Join(err, sendErr); err != nil {
				t.Error(err)
			}
		},
		"sends no ledger": sendLedger(func(message) []int { return nil }),
		"sends two": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, size, sealsOfPeer, nil), ledgerFD(t, o, size, size, sealsOfPeer, nil)}
		}),
		"ledger too small": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size-1, size-1, sealsOfPeer, nil)}
		}),
		"ledger too large": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size+1, size+1, sealsOfPeer, nil)}
		}),
		"ledger sparse": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, 0, sealsOfPeer, nil)}
		}),
		"ledger can shrink": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, size, sealsOfPeer&^unix.F_SEAL_SHRINK, nil)}
		}),
		"ledger can be written by others": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, size, sealsOfPeer&^unix.F_SEAL_FUTURE_WRITE, nil)}
		}),
		"ledger of another index": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, size, sealsOfPeer, func(sb *superblock) { sb.reader++ })}
		}),
		"ledger of another store": sendLedger(func(o message) []int {
			return []int{ledgerFD(t, o, size, size, sealsOfPeer, func(sb *superblock) { sb.store++ })}
		}),
		"says that it is for another store": func(t *testing.T, conn *net.UnixConn) {
			if err := send(conn, message{kind: messageHello, pid: 1}); err != nil {
				t.Error(err)
			}
			offer, _, err := receive(conn, messageGeometry, 0)
			if err != nil {
				t.Error(err)
				return
			}
			fd := ledgerFD(t, offer.message, size, size, sealsOfPeer, nil)
			if err := send(conn, message{kind: messageLedger, geometry: geometry{store: offer.store + 1}}, fd); err != nil {
				t.Error(err)
			}
			closeAll([]int{fd})
		},
		"an ordinary file": sendLedger(func(message) []int {
			fd, err := unix.Open(os.Args[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
			}
			return []int{fd}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			owner, reader := connPair(t)
			before := openDescriptors(t)
			done := make(chan struct{})
			go func() {
				defer close(done)
				peer(t, reader)
			}()
			id, err := s.Admit(owner)
			<-done
			if err == nil {
				t.Fatalf("admitted as %d", id)
			}
			hungUp := name == "hangs up" || name == "hangs up after hello"
			if !hungUp && !errors.Is(err, ErrProtocol) {
				t.Errorf("error %v is not typed", err)
			}
			reader.Close()
			if got := openDescriptors(t); got > before {
				t.Errorf("%d descriptors are open, %d were before", got, before)
			}
			if got := s.Stats().Readers; got != Readers(0) {
				t.Errorf("readers %v are left", got)
			}
			wantClean(t, s)
		})
	}
	if r := attachHere(t, s); r.ID() != 1 {
		t.Errorf("the first honest reader has index %d", r.ID())
	}
}

// TestPrefaultWithoutKernelHelp: on kernels that cannot populate a mapping at
// once, every page is touched.
func TestPrefaultWithoutKernelHelp(t *testing.T) {
	const pages = 5
	b, err := unix.Mmap(-1, 0, pages*pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	prefault(b, func([]byte, int) error { return unix.EINVAL })
	resident := make([]byte, pages)
	if _, _, errno := unix.Syscall(unix.SYS_MINCORE, addressOf(b), uintptr(len(b)), addressOf(resident)); errno != 0 {
		t.Fatal(errno)
	}
	for i, r := range resident {
		if r&1 == 0 {
			t.Errorf("page %d was not touched", i)
		}
	}
	runtime.KeepAlive(resident)
}

// TestCreateRefusesTooMuch: a store larger than the machine is refused with
// the figures, before anything is allocated.
func TestCreateRefusesTooMuch(t *testing.T) {
	_, err := Create(Options{ArenaBytes: 1 << 45, Slots: 64})
	var refused *MemoryError
	if !errors.As(err, &refused) {
		t.Fatalf("error %v, want a *MemoryError", err)
	}
	if refused.NeededBytes < 1<<45 || refused.Limit == "" {
		t.Errorf("refused with %+v", refused)
	}
}

func TestAdmitNeedsSharedMemory(t *testing.T) {
	s := create(t, small(Heap))
	owner, _ := connPair(t)
	_, err := s.Admit(owner)
	wantError(t, "Admit", err, ErrUnsupported)
}

// TestReleasedSegmentDoesNotFault: see segment.release.
func TestReleasedSegmentDoesNotFault(t *testing.T) {
	seg, err := newSegment(Shared, kindLedger, pageBytes)
	if err != nil {
		t.Fatal(err)
	}
	seg.data[7] = 1
	seg.release()
	if seg.data[7] != 0 {
		t.Error("the released memory is still there")
	}
	seg.data[7] = 2 // as a method that raced with the release may do
	seg.release()
}

// TestAdmissionsAtOnce: each admission has its own index, which is free again if the admission does not end in a
// reader.
func TestAdmissionsAtOnce(t *testing.T) {
	opts := small(Shared)
	opts.MaxReaders = 2
	s := create(t, opts)
	start := func() *Admission {
		t.Helper()
		a, err := s.StartAdmission()
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	first, second := start(), start()
	if first.id == second.id {
		t.Fatalf("two admissions have the index %d", first.id)
	}
	_, err := s.StartAdmission()
	wantError(t, "an admission too many", err, ErrTooManyReaders)
	_, err = s.DeclareReader("here")
	wantError(t, "a reader too many", err, ErrTooManyReaders)
	first.Cancel()
	owner, reader := connPair(t)
	reader.Close()
	third := start()
	if third.id != first.id {
		t.Errorf("index %d, want %d, which is free again", third.id, first.id)
	}
	if err := third.Exchange(owner); err == nil {
		t.Error("an exchange without a peer succeeded")
	}
	third.Cancel()
	second.Cancel()
	for range 2 {
		attachHere(t, s)
	}
	wantClean(t, s)
}

// TestCanceledAdmission: a reader that has sent its ledger and is not admitted leaves nothing, and gets no message.
func TestCanceledAdmission(t *testing.T) {
	s := create(t, small(Shared))
	for name, end := range map[string]func(a *Admission, owner, reader *net.UnixConn){
		"cancelled": func(a *Admission, _, _ *net.UnixConn) {
			a.Cancel()
		},
		"no space for the grant": func(a *Admission, owner, _ *net.UnixConn) {
			for {
				if err := sendNow(owner, message{kind: messageGrant}); err != nil {
					break
				}
			}
			_, err := a.Join()
			if !errors.Is(err, unix.EAGAIN) {
				t.Errorf("join: %v, want EAGAIN", err)
			}
		},
		"gone before the grant": func(a *Admission, _, reader *net.UnixConn) {
			reader.Close()
			if _, err := a.Join(); !errors.Is(err, unix.EPIPE) {
				t.Errorf("join: %v, want EPIPE", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			owner, reader := connPair(t)
			before := openDescriptors(t)
			a, err := s.StartAdmission()
			if err != nil {
				t.Fatal(err)
			}
			sent := make(chan struct{})
			go func() {
				defer close(sent)
				_ = send(reader, message{kind: messageHello, pid: 1})
				offer, _, err := receive(reader, messageGeometry, 0)
				if err != nil {
					t.Error(err)
					return
				}
				size := int64(ledgerBytes(int(offer.slots)))
				fd := ledgerFD(t, offer.message, size, size, sealsOfPeer, nil)
				if err := send(reader, message{kind: messageLedger, geometry: geometry{store: offer.store}}, fd); err != nil {
					t.Error(err)
				}
				closeAll([]int{fd})
			}()
			if err := a.Exchange(owner); err != nil {
				t.Fatal(err)
			}
			<-sent
			if a.from.pid != os.Getpid() {
				t.Errorf("the ledger is of process %d, want %d: hello is not trusted", a.from.pid, os.Getpid())
			}
			end(a, owner, reader)
			if got := openDescriptors(t); got > before {
				t.Errorf("%d descriptors are open, %d were before", got, before)
			}
			if st := s.Stats(); st.Readers != Readers(0) || s.admitting != 0 {
				t.Errorf("readers %v and indexes %v are left", st.Readers, s.admitting)
			}
			wantClean(t, s)
		})
	}
}

// TestRefusal: a refused reader gets the error for which the owner refuses it.
func TestRefusal(t *testing.T) {
	for _, why := range []error{ErrTooManyReaders, ErrClosed, ErrProtocol} {
		owner, reader := connPair(t)
		refused := make(chan error, 1)
		go func() {
			refused <- Refuse(owner, why)
			owner.Close()
		}()
		_, err := Attach(reader)
		wantError(t, "Attach", err, why)
		if err := <-refused; err != nil {
			t.Error(err)
		}
	}
}
