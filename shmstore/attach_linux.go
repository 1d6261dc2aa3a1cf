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
)

// Admit takes in the reader at the other end of a SOCK_SEQPACKET connection,
// which calls [Attach], and returns its index. The peer is not trusted: it can
// make Admit fail, or wait for some seconds, and nothing else. After an error
// nothing of the peer is left here, and the connection is of no more use.
//
// The store must be in [Shared] memory. The caller keeps watch over the peer's
// process, and calls [Store.RemoveReader] when it has died. Writer only.
func (s *Store) Admit(conn *net.UnixConn) (ReaderID, error) {
	id, err := s.admit(conn)
	if err != nil {
		return 0, fmt.Errorf("admit reader: %w", err)
	}
	return id, nil
}

func (s *Store) admit(conn *net.UnixConn) (ReaderID, error) {
	if s.memory != Shared {
		return 0, fmt.Errorf("%w: the store is in %v memory", ErrUnsupported, s.memory)
	}
	id, err := s.freeIndex()
	if err == nil {
		err = s.fillAll() // a reader looks once whether all is there
	}
	if err != nil {
		return 0, err
	}
	if err := conn.SetDeadline(time.Now().Add(attachTimeout)); err != nil {
		return 0, err
	}
	hello, _, err := receive(conn, messageHello, 0)
	if err != nil {
		return 0, err
	}
	if err := send(conn, message{kind: messageGeometry, reader: id, geometry: s.geo}); err != nil {
		return 0, err
	}
	answer, fds, err := receive(conn, messageLedger, 1)
	if err != nil {
		return 0, err
	}
	a, err := s.openAccount(id, hello.pid, fds[0])
	if err != nil {
		return 0, err
	}
	if answer.store != s.geo.store {
		a.release()
		return 0, fmt.Errorf("%w: a ledger for store %x", ErrProtocol, answer.store)
	}
	s.join(a)
	grant := message{kind: messageGrant, geometry: geometry{store: s.geo.store}}
	err = send(conn, grant, s.arenaSegment.fd, s.directorySegment.fd, a.segments[0].fd)
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		return 0, errors.Join(err, s.RemoveReader(id))
	}
	return id, nil
}

// openAccount maps a peer's ledger and makes the account it is to read.
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
// trusted with the payloads, not with this process's memory: what it sends is
// checked before it is mapped, and mapped read-only. After an error the
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
	r, err := exchange(conn, offer, ledger)
	if err != nil {
		ledger.release()
		return nil, err
	}
	if err := conn.SetDeadline(time.Time{}); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// exchange gives the ledger away and maps the store it gets in return.
func exchange(conn *net.UnixConn, offer message, ledger *segment) (*Reader, error) {
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

// newRemoteReader is a reader of a store in another process. Of its segments, the
// ledger among them, the arena is the first and the directory the second.
func newRemoteReader(id ReaderID, geo geometry, owed debt, ledger *segment, segments []*segment) *Reader {
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
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if _, _, err := conn.WriteMsgUnix(b[:], rights, nil); err != nil {
		return fmt.Errorf("send message %d: %w", m.kind, err)
	}
	return nil
}

// receive reads one message of the given kind with exactly the given number of
// descriptors, which are the caller's to close. If it fails it leaves no
// descriptor open.
func receive(conn *net.UnixConn, want messageKind, descriptors int) (message, []int, error) {
	// One byte and one descriptor more than allowed, to notice both.
	b := make([]byte, messageBytes+1)
	oob := make([]byte, unix.CmsgSpace((grantDescriptors+1)*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if errors.Is(err, io.EOF) && oobn > 0 {
		err = nil // a message of no bytes, which looks like the end but for its descriptors
	}
	if err != nil {
		return message{}, nil, fmt.Errorf("receive message %d: %w", want, err)
	}
	fds, err := descriptorsOf(oob[:oobn])
	switch {
	case err != nil:
	case flags&unix.MSG_CTRUNC != 0:
		err = fmt.Errorf("%w: descriptors of message %d were lost: there are more than %d of them, or too many files are open here", ErrProtocol, want, len(fds))
	case len(fds) != descriptors:
		err = fmt.Errorf("%w: %d descriptors instead of %d with message %d", ErrProtocol, len(fds), descriptors, want)
	}
	var m message
	if err == nil {
		m, err = decodeMessage(b[:n], want)
	}
	if err != nil {
		closeAll(fds)
		return message{}, nil, err
	}
	return m, fds, nil
}

// descriptorsOf returns all descriptors in control messages, also together
// with an error.
func descriptorsOf(oob []byte) (fds []int, err error) {
	if len(oob) == 0 {
		return nil, nil
	}
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrProtocol, err)
	}
	for i := range messages {
		got, rightsErr := unix.ParseUnixRights(&messages[i])
		if rightsErr != nil {
			err = fmt.Errorf("%w: %w", ErrProtocol, rightsErr)
			continue
		}
		fds = append(fds, got...)
	}
	return fds, err
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
