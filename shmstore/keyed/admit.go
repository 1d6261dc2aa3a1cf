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

// acceptPause is how long a listener that could not accept, for want of descriptors most likely, lets be.
const acceptPause = 100 * time.Millisecond

// Listen makes processes of this user readers that call [Dial] with the path, each until it closes its reader, or is
// dead. It returns when the path can be dialed. The socket file admits this user alone; a file path.lock beside it
// stays for good. A path at which another store listens is [ErrInUse]; the socket of a store whose process has died is
// replaced. A store may listen at several paths.
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

// closed reports whether Close was called. The writer's right is held, if a reader is to be added.
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

// serve admits the process that has connected, if it is this user's. What it does wrong it learns by the end of the
// connection.
func (s *Store) serve(conn *peer.Conn) {
	if _, uid, _ := conn.Credentials(); int(uid) != os.Geteuid() {
		_ = conn.Close() // nothing was sent
		return
	}
	_, _ = s.admit(conn.Unix())
}

// Admit makes the process at the other end of a connection of type SOCK_SEQPACKET a reader, until it closes its reader,
// or is dead: there [Open] is called. It is charged for values that are put or asked for from then on. Admit waits for
// the other process, for seconds at most; other calls do not wait meanwhile. The connection is the store's from the
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

// startAdmission notes the connection, so that Close ends it, and reserves an index.
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

// watch removes a reader when its process is dead, or has closed the connection. A process that the reader's has
// forked may have the connection, too, and keeps it open: so both are watched.
func (s *Store) watch(conn *net.UnixConn, reader *process.Process) {
	stop := reader.OnExit(func() { _ = conn.Close() }) // it ends the read
	awaitDisconnect(conn)
	stop()
	s.disconnect(conn)
	_ = reader.Close() // a pidfd holds nothing that could be lost
}

// awaitDisconnect returns when a connection over which nothing more is sent has ended, or something is sent all the same.
func awaitDisconnect(conn *net.UnixConn) {
	var b [1]byte
	_, _ = conn.Read(b[:])
}

// disconnect closes a connection, and removes the reader that has it.
func (s *Store) disconnect(conn *net.UnixConn) {
	_ = conn.Close() // the other process may have done so before
	s.writer.Lock()
	defer s.writer.Unlock()
	id := s.conns[conn]
	delete(s.conns, conn)
	if id != shmstore.LocalReader {
		s.readers &^= shmstore.Readers(id)
		_ = s.store.RemoveReader(id) // it is there as long as conns has it
	}
}

// RemoveReader ends a reader before its process has closed it: what it owed and read is free, and what it still reads
// may be written over. The error is [shmstore.ErrUnknownReader].
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

// Close ends the store, its listeners and its connections, and removes their socket files. Readers keep what they have,
// and get no more. While a value is being put the memory stays mapped, and the error is [shmstore.ErrBusy]: Close may
// be called again.
func (s *Store) Close() error {
	errs := []error{s.closeStore()}
	for _, l := range s.listeners { // none is added any more, nor a connection
		errs = append(errs, l.Close())
	}
	for _, conn := range s.openConns() {
		_ = conn.Close() // the other process may have done so before
	}
	s.goroutines.Wait()
	return errors.Join(errs...)
}

// closeStore closes the store before its readers are removed: what they read is written over by no put.
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
