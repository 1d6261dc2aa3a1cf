package keyed

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/omnibus-runtime/omnibus/internal/peer"
	"github.com/omnibus-runtime/omnibus/internal/process"
	"github.com/omnibus-runtime/omnibus/shmstore"
)

// acceptPause is the pause after a failed accept, which most likely lacked descriptors.
const acceptPause = 100 * time.Millisecond

// Listen admits processes of this user that call [Dial] with the path. Each is a reader until it closes its reader, or
// dies. Listen returns when the path can be dialed. Only this user may open the socket file; a file path.lock beside it
// is never removed. A path at which another store listens is [ErrInUse]; the socket of a store whose process has died
// is replaced. A store may listen at several paths.
func (s *Store) Listen(path string) error {
	l, err := peer.Listen(path, peer.ListenOptions{})
	if errors.Is(err, peer.ErrInUse) {
		return fmt.Errorf("keyed: %w: %w", ErrInUse, err)
	}
	if err != nil {
		return fmt.Errorf("keyed: %w", err)
	}
	if err := s.listen(l); err != nil {
		return errors.Join(fmt.Errorf("keyed: listen at %s: %w", path, err), l.Close())
	}
	return nil
}

func (s *Store) listen(l *peer.Listener) error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.closed() {
		return shmstore.ErrClosed
	}
	s.listeners = append(s.listeners, l)
	s.goroutines.Go(func() { s.accept(l) })
	return nil
}

// closed reports whether Close was called. A caller that adds a reader has the writer's right.
func (s *Store) closed() bool {
	select {
	case <-s.closing:
		return true
	default:
		return false
	}
}

// accept admits readers until the listener is closed.
func (s *Store) accept(l *peer.Listener) {
	for {
		conn, err := l.Accept()
		switch {
		case err == nil:
			s.goroutines.Go(func() { s.serve(conn) })
			continue
		case errors.Is(err, net.ErrClosed):
			return
		}
		select {
		case <-s.closing:
			return
		case <-time.After(acceptPause):
		}
	}
}

// serve admits the process that has connected, if it is this user's. If it breaks the protocol, its connection is closed.
func (s *Store) serve(conn *peer.Conn) {
	if _, uid, _ := conn.Credentials(); int(uid) != os.Geteuid() {
		_ = conn.Close() // nothing was sent
		return
	}
	_, _ = s.admit(conn.Unix())
}

// Admit admits the process at the other end of a connection of type SOCK_SEQPACKET, which calls [Open]. It is a reader
// until it closes its reader, or dies, and is charged by each Put, GetCached and Touch from then on. Admit waits for
// the other process, for seconds at most; other calls do not wait meanwhile. The store owns the connection from the
// call on, also after an error. The errors are [shmstore.ErrTooManyReaders], [shmstore.ErrClosed],
// [shmstore.ErrProtocol], and those of the system.
func (s *Store) Admit(conn *net.UnixConn) (shmstore.ReaderID, error) {
	id, err := s.admit(conn)
	if err != nil {
		return 0, fmt.Errorf("keyed: admit reader: %w", err)
	}
	return id, nil
}

func (s *Store) admit(conn *net.UnixConn) (id shmstore.ReaderID, err error) {
	defer func() {
		if err != nil {
			s.disconnect(conn)
		}
	}()
	a, err := s.startAdmission(conn)
	if err != nil {
		if !errors.Is(err, shmstore.ErrClosed) { // Close waits for nothing
			_ = shmstore.Refuse(conn, err) // the peer may be gone
		}
		return 0, err
	}
	err = a.Exchange(conn)
	var reader *process.Process
	if err == nil {
		reader, err = a.Watch()
	}
	if err != nil {
		s.cancel(a)
		return 0, err
	}
	if id, err = s.join(a, conn, reader); err != nil {
		return 0, errors.Join(err, reader.Close())
	}
	return id, nil
}

// startAdmission records the connection, so that Close closes it, and reserves an index.
func (s *Store) startAdmission(conn *net.UnixConn) (*shmstore.Admission, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.closed() {
		return nil, shmstore.ErrClosed
	}
	s.conns[conn] = shmstore.LocalReader
	return s.store.StartAdmission()
}

func (s *Store) cancel(a *shmstore.Admission) {
	s.writer.Lock()
	defer s.writer.Unlock()
	a.Cancel()
}

func (s *Store) join(a *shmstore.Admission, conn *net.UnixConn, reader *process.Process) (shmstore.ReaderID, error) {
	s.writer.Lock()
	defer s.writer.Unlock()
	if s.closed() {
		a.Cancel()
		return 0, shmstore.ErrClosed
	}
	id, err := a.Join()
	if err != nil {
		return 0, err
	}
	s.readers |= shmstore.Readers(id)
	s.conns[conn] = id
	s.goroutines.Go(func() { s.watch(conn, reader) })
	return id, nil
}

// watch removes a reader when its process is dead, or has closed the connection. It watches both, because a child that
// the reader's process has forked may keep the connection open.
func (s *Store) watch(conn *net.UnixConn, reader *process.Process) {
	stop := reader.OnExit(func() { _ = conn.Close() }) // ends the read in awaitDisconnect
	awaitDisconnect(conn)
	stop()
	s.disconnect(conn)
	_ = reader.Close() // closing a pidfd loses no data
}

// awaitDisconnect returns when a connection is closed, or when the peer sends a byte, which breaks the protocol.
func awaitDisconnect(conn *net.UnixConn) {
	var b [1]byte
	_, _ = conn.Read(b[:])
}

// disconnect closes a connection, and removes its reader.
func (s *Store) disconnect(conn *net.UnixConn) {
	_ = conn.Close() // the other process may have done so before
	s.writer.Lock()
	defer s.writer.Unlock()
	id := s.conns[conn]
	delete(s.conns, conn)
	if id != shmstore.LocalReader {
		s.readers &^= shmstore.Readers(id)
		_ = s.store.RemoveReader(id) // a reader in conns is present
	}
}

// RemoveReader removes a reader before its process has closed it. Its debts are dropped, and values that it still reads
// may be overwritten. The error is [shmstore.ErrUnknownReader].
func (s *Store) RemoveReader(id shmstore.ReaderID) error {
	conn := s.connOf(id)
	if conn == nil {
		return fmt.Errorf("keyed: remove reader %d: %w", id, shmstore.ErrUnknownReader)
	}
	s.disconnect(conn)
	return nil
}

func (s *Store) connOf(id shmstore.ReaderID) *net.UnixConn {
	s.writer.Lock()
	defer s.writer.Unlock()
	for conn, of := range s.conns {
		if of == id && id != shmstore.LocalReader {
			return conn
		}
	}
	return nil
}

// Close closes the store, its listeners and its connections, and removes the socket files. Readers keep the values that
// they have got, and get no more. While a value is being put, the memory stays mapped, and the error is
// [shmstore.ErrBusy]: Close may be called again.
func (s *Store) Close() error {
	errs := []error{s.closeStore()}
	for _, l := range s.listeners { // no listener and no connection is added after closeStore
		errs = append(errs, l.Close())
	}
	for _, conn := range s.openConns() {
		_ = conn.Close() // the other process may have done so before
	}
	s.goroutines.Wait()
	return errors.Join(errs...)
}

// closeStore closes the store before its readers are removed, so that no put overwrites values that they read.
func (s *Store) closeStore() error {
	s.writer.Lock()
	defer s.writer.Unlock()
	if !s.closed() {
		close(s.closing)
	}
	return s.store.Close()
}

func (s *Store) openConns() []*net.UnixConn {
	s.writer.Lock()
	defer s.writer.Unlock()
	return slices.Collect(maps.Keys(s.conns))
}
