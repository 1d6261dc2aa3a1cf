package shmstore

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/internal/faultpoint"
	"github.com/omnibus-runtime/omnibus/internal/process"
)

// Admit admits the reader at the other end of a SOCK_SEQPACKET connection,
// which calls [Attach], and returns its index. The peer is not trusted: it can
// make Admit fail, or wait for some seconds, and nothing else. After an error
// nothing of the peer is left in this process, and the connection is of no more use.
//
// The store must be in [Shared] memory. The caller watches the peer's
// process, and calls [Store.RemoveReader] when it has died. Writer only: the
// writer waits for the peer, which an [Admission] avoids.
func (s *Store) Admit(conn *net.UnixConn) (ReaderID, error) {
	id, err := s.admit(conn)
	if err != nil {
		return 0, fmt.Errorf("admit reader: %w", err)
	}
	return id, nil
}

func (s *Store) admit(conn *net.UnixConn) (ReaderID, error) {
	a, err := s.StartAdmission()
	if err != nil {
		return 0, err
	}
	if err := a.Exchange(conn); err != nil {
		a.Cancel()
		return 0, err
	}
	return a.Join()
}

// Admission admits one reader, as [Store.Admit] does, in steps: so a program waits for no
// other process while it has the writer's right.
//
//	a, err := store.StartAdmission()  // the writer
//	err = a.Exchange(conn)            // any goroutine: waits for the other process
//	id, err := a.Join()               // the writer; or a.Cancel()
//
// After StartAdmission exactly one of Join and Cancel is called, once.
type Admission struct {
	store   *Store
	id      ReaderID
	conn    *net.UnixConn
	account *account // of the reader, once it has sent its ledger
	from    sender   // of the ledger
}

// StartAdmission reserves an index for a reader. The errors are [ErrUnsupported] of a store that is not in [Shared]
// memory, [ErrTooManyReaders], [ErrClosed], and those of the system if a store with Options.Reuse takes the rest of its
// memory here. Writer only.
func (s *Store) StartAdmission() (*Admission, error) {
	if s.memory != Shared {
		return nil, fmt.Errorf("%w: the store is in %v memory", ErrUnsupported, s.memory)
	}
	id, err := s.freeIndex()
	if err == nil {
		err = s.fillAll() // a reader checks only once that all pages are there
	}
	if err != nil {
		return nil, err
	}
	s.admitting |= Readers(id)
	return &Admission{store: s, id: id}, nil
}

// Exchange gets the ledger of the process at the other end of a SOCK_SEQPACKET connection, which calls [Attach]. The
// peer is not trusted: it can make Exchange fail, or wait for some seconds, and nothing else. It is called once, by any
// goroutine.
func (a *Admission) Exchange(conn *net.UnixConn) error {
	a.conn = conn
	if err := conn.SetDeadline(time.Now().Add(attachTimeout)); err != nil {
		return err
	}
	if err := passCredentials(conn); err != nil {
		return err
	}
	hello, _, err := receive(conn, messageHello, 0)
	if err != nil {
		return err
	}
	s := a.store
	if err := send(conn, message{kind: messageGeometry, reader: a.id, geometry: s.geo}); err != nil {
		return err
	}
	answer, fds, err := receive(conn, messageLedger, 1)
	if err != nil {
		return err
	}
	pid := uint64(answer.from.pid)
	if pid == 0 {
		pid = hello.pid // unverified: it only names the reader in errors
	}
	account, err := s.openAccount(a.id, pid, fds[0])
	if err != nil {
		return err
	}
	if answer.store != s.geo.store {
		account.release()
		return fmt.Errorf("%w: a ledger for store %x", ErrProtocol, answer.store)
	}
	a.account, a.from = account, answer.from
	return nil
}

// Watch watches the process that sent the ledger, by the credentials from the kernel. Call it after Exchange. The caller
// closes the watch. The error is [process.ErrGone] if the process is dead already.
func (a *Admission) Watch() (*process.Process, error) {
	if a.from.pid == 0 {
		return nil, errors.New("the reader's process is in another pid namespace, from where its death cannot be seen")
	}
	return process.Watch(a.from.pid, a.from.seen)
}

// Join makes the process a reader, and sends it the grant. Call it after Exchange. It does not wait. After an error,
// which is [ErrClosed] or one of the system's, nothing of the reader is left. Writer only.
func (a *Admission) Join() (ReaderID, error) {
	s := a.store
	if s.closed.Load() {
		a.Cancel()
		return 0, ErrClosed
	}
	s.admitting &^= Readers(a.id)
	s.addAccount(a.account)
	grant := message{kind: messageGrant, geometry: geometry{store: s.geo.store}}
	err := sendNow(a.conn, grant, s.arenaSegment.fd, s.directorySegment.fd, a.account.segments[0].fd)
	if err == nil {
		err = a.conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return 0, errors.Join(err, s.RemoveReader(a.id))
	}
	return a.id, nil
}

// Cancel ends an admission in place of Join, and frees its index. Writer only.
func (a *Admission) Cancel() {
	a.store.admitting &^= Readers(a.id)
	if a.account != nil {
		a.account.release()
	}
}

// Refuse tells the process at the other end of a connection, which calls [Attach], that it does not become a reader.
// The error of Attach matches [ErrTooManyReaders] or [ErrClosed] if why does. Refuse waits for the other process,
// for seconds at most. The connection is of no more use.
func Refuse(conn *net.UnixConn, why error) error {
	err := conn.SetDeadline(time.Now().Add(attachTimeout))
	if err == nil {
		_, _, err = receive(conn, messageHello, 0) // closing with an unread hello would discard the answer
	}
	if err == nil {
		err = send(conn, message{kind: messageRefusal, reason: reasonOf(why)})
	}
	if err != nil {
		return fmt.Errorf("refuse reader: %w", err)
	}
	return nil
}

// openAccount maps a peer's ledger and makes the account that the peer reads.
func (s *Store) openAccount(id ReaderID, pid uint64, ledgerFD int) (*account, error) {
	slots := int(s.geo.slots)
	ledger, err := openSegment(kindLedger.String(), ledgerFD, ledgerBytes(slots))
	if err != nil {
		return nil, err
	}
	sb := superblock{kind: kindLedger, reader: id, geometry: s.geo}
	if err := sb.verify(ledger.data); err != nil {
		ledger.release()
		return nil, err
	}
	own, err := newSuperblockSegment(superblock{kind: kindAccount, reader: id, geometry: s.geo}, columnBytes(slots))
	if err != nil {
		ledger.release()
		return nil, err
	}
	return &account{
		id:       id,
		name:     fmt.Sprintf("process %d", pid),
		owed:     columnOf(own.data, slots),
		ledger:   entriesOf(ledger.data, slots),
		segments: []*segment{own, ledger},
	}, nil
}

// newSuperblockSegment makes a shared segment that begins with a superblock.
func newSuperblockSegment(sb superblock, sizeBytes int) (*segment, error) {
	if err := checkHeadroom(uint64(sizeBytes)); err != nil {
		return nil, err
	}
	seg, err := newSegment(Shared, sb.kind, sizeBytes)
	if err != nil {
		return nil, err
	}
	b := sb.encode()
	copy(seg.data, b[:])
	return seg, nil
}

// Attach makes this process a reader of the store whose owner calls
// [Store.Admit] at the other end of a SOCK_SEQPACKET connection. The owner is
// trusted with the payloads, not with this process's memory: its segments are
// checked before they are mapped, and mapped read-only. After an error the
// connection is of no more use. Call [Reader.Close] in the end, and then close
// the connection, so that the owner removes the reader.
func Attach(conn *net.UnixConn) (*Reader, error) {
	r, err := attach(conn)
	if err != nil {
		return nil, fmt.Errorf("attach to store: %w", err)
	}
	return r, nil
}

func attach(conn *net.UnixConn) (*Reader, error) {
	if err := conn.SetDeadline(time.Now().Add(attachTimeout)); err != nil {
		return nil, err
	}
	if err := send(conn, message{kind: messageHello, pid: uint64(os.Getpid())}); err != nil {
		return nil, err
	}
	offer, _, err := receive(conn, messageGeometry, 0)
	if err != nil {
		return nil, err
	}
	sb := superblock{kind: kindLedger, reader: offer.reader, geometry: offer.geometry}
	ledger, err := newSuperblockSegment(sb, ledgerBytes(int(offer.slots)))
	if err != nil {
		return nil, err
	}
	r, err := requestGrant(conn, offer.message, ledger)
	if err != nil {
		ledger.release()
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// requestGrant sends the ledger, and maps the store's segments from the grant.
func requestGrant(conn *net.UnixConn, offer message, ledger *segment) (*Reader, error) {
	faultpoint.Hit("attach-before-ledger")
	err := send(conn, message{kind: messageLedger, geometry: geometry{store: offer.store}}, ledger.fd)
	if err != nil {
		return nil, err
	}
	faultpoint.Hit("attach-ledger-sent")
	grant, fds, err := receive(conn, messageGrant, grantDescriptors)
	if err != nil {
		return nil, err
	}
	segments, err := openGrant(offer, fds)
	if err != nil {
		return nil, err
	}
	segments = append(segments, ledger)
	directory, account := segments[1], segments[2]
	if grant.store != offer.store {
		err = fmt.Errorf("%w: a grant for store %x", ErrProtocol, grant.store)
	}
	for _, part := range []struct {
		kind   segmentKind
		reader ReaderID
		data   []byte
	}{
		{kindDirectory, LocalReader, directory.data},
		{kindAccount, offer.reader, account.data},
	} {
		if err == nil {
			err = superblock{kind: part.kind, reader: part.reader, geometry: offer.geometry}.verify(part.data)
		}
	}
	if err != nil {
		for _, seg := range segments[:grantDescriptors] {
			seg.release()
		}
		return nil, err
	}
	faultpoint.Hit("attach-granted")
	return newRemoteReader(offer.reader, offer.geometry, columnOf(account.data, int(offer.slots)), ledger, segments), nil
}

// newRemoteReader returns a reader of a store in another process. Of its segments, which
// include the ledger, the arena is the first and the directory the second.
func newRemoteReader(id ReaderID, geo geometry, owed debtColumn, ledger *segment, segments []*segment) *Reader {
	arena, directory, slots := segments[0], segments[1], int(geo.slots)
	return &Reader{
		leaseView: leaseView{
			id:       id,
			geo:      geo,
			data:     arena.data,
			lines:    linesOf(directory.data, slots),
			ledger:   entriesOf(ledger.data, slots),
			owed:     owed,
			taken:    make([]atomic.Uint32, slots),
			wantRoom: wantRoomOf(directory.data),
			doorbell: &doorbell{},
			leases:   &leaseBook{},
			remote:   true,
		},
		segments: segments,
		large:    newLargeTable(),
	}
}

// openGrant maps the descriptors of a grant, all or none.
func openGrant(offer message, fds []int) (segments []*segment, err error) {
	sizes := [grantDescriptors]int{int(offer.arena), directoryBytes(int(offer.slots)), columnBytes(int(offer.slots))}
	for i, kind := range []segmentKind{kindArena, kindDirectory, kindAccount} {
		seg, openErr := openSegment(kind.String(), fds[i], sizes[i])
		if openErr != nil {
			for _, seg := range segments {
				seg.release()
			}
			closeAll(fds[i+1:])
			return nil, openErr
		}
		segments = append(segments, seg)
	}
	return segments, nil
}

// send writes one message with its descriptors.
func send(conn *net.UnixConn, m message, fds ...int) error {
	b := m.encode()
	if _, _, err := conn.WriteMsgUnix(b[:], rightsOf(fds), nil); err != nil {
		return fmt.Errorf("send message %d: %w", m.kind, err)
	}
	return nil
}

// sendNow is send, but a full queue is an error in place of a wait. The queue of a peer that reads is not full.
func sendNow(conn *net.UnixConn, m message, fds ...int) error {
	b, rights := m.encode(), rightsOf(fds)
	raw, err := conn.SyscallConn()
	var sendErr error
	if err == nil {
		err = raw.Write(func(fd uintptr) bool {
			sendErr = unix.Sendmsg(int(fd), b[:], rights, nil, unix.MSG_NOSIGNAL)
			return !errors.Is(sendErr, unix.EINTR)
		})
	}
	if err := errors.Join(err, sendErr); err != nil {
		return fmt.Errorf("send message %d: %w", m.kind, err)
	}
	return nil
}

func rightsOf(fds []int) []byte {
	if len(fds) == 0 {
		return nil
	}
	return unix.UnixRights(fds...)
}

// received is a message with its sender.
type received struct {
	message
	from sender
}

// sender is the process that sent a message, by the kernel's credentials.
type sender struct {
	pid  int           // 0: without credentials, or in a pid namespace that is not visible here
	seen time.Duration // when the message was received, by [process.SinceBoot]
}

// passCredentials has the kernel add the credentials of the sending process to each message: the process that made a
// pair of sockets need not be the one at its other end.
func passCredentials(conn *net.UnixConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return err
	}
	var setErr error
	err = raw.Control(func(fd uintptr) { setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_PASSCRED, 1) })
	return errors.Join(err, setErr)
}

// receive reads one message of the given kind with exactly the given number of
// descriptors, which the caller closes. If it fails it leaves no
// descriptor open.
func receive(conn *net.UnixConn, want messageKind, descriptors int) (received, []int, error) {
	// One byte and one descriptor more than allowed, to notice both.
	b := make([]byte, messageBytes+1)
	oob := make([]byte, unix.CmsgSpace((grantDescriptors+1)*4)+unix.CmsgSpace(unix.SizeofUcred))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if errors.Is(err, io.EOF) && oobn > 0 {
		err = nil // a message of no bytes with descriptors, which is not the end
	}
	if err != nil {
		return received{}, nil, fmt.Errorf("receive message %d: %w", want, err)
	}
	fds, from, err := parseControl(oob[:oobn])
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("%w: descriptors of message %d were lost: there are more than %d of them, or too many files are open here", ErrProtocol, want, len(fds))
	case len(fds) != descriptors:
		err = fmt.Errorf("%w: %d descriptors instead of %d with message %d", ErrProtocol, len(fds), descriptors, want)
	}
	m := received{from: from}
	if err == nil {
		m.message, err = decodeMessage(b[:n], want)
	}
	if err != nil {
		closeAll(fds)
		return received{}, nil, err
	}
	return m, fds, nil
}

// parseControl returns all descriptors in control messages, even with an error, and
// their sender.
func parseControl(oob []byte) (fds []int, from sender, err error) {
	if len(oob) == 0 {
		return nil, from, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, from, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	for i := range messages {
		if cred, credErr := unix.ParseUnixCredentials(&messages[i]); credErr == nil {
			now, clockErr := process.SinceBoot()
			from, err = sender{pid: int(cred.Pid), seen: now}, errors.Join(err, clockErr)
			continue
		}
		got, rightsErr := unix.ParseUnixRights(&messages[i])
		if rightsErr != nil {
			err = fmt.Errorf("%w: %w", ErrProtocol, rightsErr)
			continue
		}
		fds = append(fds, got...)
	}
	return fds, from, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
