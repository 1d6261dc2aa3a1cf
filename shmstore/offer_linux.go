package shmstore

import (
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// OfferReader makes a place for a reader in another process that is to open the
// store by the names of its files, now or later, and returns its index. Its ledger
// is in the scan from here on. Such a reader cannot be charged: it pins.
//
// One reader at a time may have the place, and who that is is for the program to
// settle, with locks that go with their process. The store must have Options.File;
// the errors are those of making it, [ErrUnsupported] and [ErrTooManyReaders]. Writer
// only.
func (s *Store) OfferReader() (ReaderID, error) {
	id, err := s.offer()
	if err != nil {
		return 0, fmt.Errorf("offer a reader: %w", err)
	}
	return id, nil
}

func (s *Store) offer() (ReaderID, error) {
	if s.file == nil {
		return 0, fmt.Errorf("%w: the store has no names", ErrUnsupported)
	}
	id, err := s.freeIndex()
	if err != nil {
		return 0, err
	}
	slots := int(s.geo.slots)
	if err := checkHeadroom(uint64(ledgerBytes(slots))); err != nil {
		return 0, err
	}
	ledger, err := newFileSegment(s.file, "ledger-"+strconv.Itoa(int(id)), ledgerBytes(slots), (*segment).mapReadOnly)
	if err != nil {
		return 0, err
	}
	sb := superblock{kind: kindLedger, reader: id, geometry: s.geo}.encode()
	if err := writeAll(ledger.fd, sb[:], 0); err != nil {
		ledger.release()
		return 0, err
	}
	s.join(&account{
		id:       id,
		name:     fmt.Sprintf("the reader in place %d", id),
		owed:     make(debt, slots),
		ledger:   entriesOf(ledger.data, slots),
		segments: []*segment{ledger},
	})
	s.offered |= Readers(id)
	return id, nil
}

// ResetReader forgets all that the reader in an offered place holds, which is known
// to be dead or gone, and leaves the place for the next. Nobody may have the place
// meanwhile. The error is a [*ReaderError], or one of the system's. Writer only.
func (s *Store) ResetReader(id ReaderID) error {
	if !s.offered.Has(id) {
		return fmt.Errorf("reset reader %d: %w", id, &ReaderError{Readers: Readers(id), Err: ErrUnknownReader})
	}
	for _, a := range s.accounts {
		if a.id != id {
			continue
		}
		if err := writeAll(a.segments[0].fd, make([]byte, len(a.ledger)*entryBytes), pageBytes); err != nil {
			return fmt.Errorf("reset reader %d: %w", id, err)
		}
	}
	s.quarantine &^= Readers(id)
	return nil
}

// writeAll writes to a file whose pages are all allocated.
func writeAll(fd int, b []byte, at int64) error {
	for len(b) > 0 {
		n, err := unix.Pwrite(fd, b, at)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("write: %w", err)
		}
		b, at = b[n:], at+int64(n)
	}
	return nil
}

// OpenReader makes this process the reader in a place that the owner has offered, by
// the files of the arena, the directory and the place's ledger, which it owns from
// here on, also if it fails. Whatever an earlier reader held in that place is
// forgotten: the caller alone has it, see [Store.OfferReader].
//
// The owner is trusted not to shorten the files, which nothing keeps it from; sizes
// and superblocks are checked before anything is mapped, read-only but for the ledger.
// The error is an [ErrProtocol] or one of the system's. Call [Reader.Close] in the end.
func OpenReader(arena, directory, ledger int) (*Reader, error) {
	r, err := openReader(&segment{fd: arena}, &segment{fd: directory}, &segment{fd: ledger})
	if err != nil {
		return nil, fmt.Errorf("open a store by name: %w", err)
	}
	return r, nil
}

func openReader(arena, directory, ledger *segment) (*Reader, error) {
	segments := []*segment{arena, directory, ledger}
	geo, id, err := mapByName(arena, directory, ledger)
	if err != nil {
		for _, seg := range segments {
			seg.release()
		}
		return nil, err
	}
	r := newRemoteReader(id, geo, make(debt, geo.slots), ledger, segments)
	for slot := range r.ledger {
		r.ledger[slot].pin.Store(0)
		r.ledger[slot].done.Store(0)
	}
	return r, nil
}

// mapByName maps the segments of a store after it was found that they are one's.
func mapByName(arena, directory, ledger *segment) (geometry, ReaderID, error) {
	of, err := readSuperblock(kindDirectory, directory.fd)
	if err != nil {
		return geometry{}, 0, err
	}
	place, err := readSuperblock(kindLedger, ledger.fd)
	if err != nil {
		return geometry{}, 0, err
	}
	if place.geometry != of.geometry || place.reader == LocalReader {
		return geometry{}, 0, fmt.Errorf("%w: directory and ledger are of different stores", ErrProtocol)
	}
	slots := int(of.slots)
	for _, part := range []struct {
		seg       *segment
		sizeBytes int
		mapping   func(*segment, int) error
	}{
		{arena, int(of.arena), (*segment).mapReadOnly},
		{directory, directoryBytes(slots), (*segment).mapReadOnly},
		{ledger, ledgerBytes(slots), func(seg *segment, n int) error { return seg.mapAs(unix.PROT_READ|unix.PROT_WRITE, n) }},
	} {
		err := inspectSize(part.seg.fd, part.sizeBytes)
		if err == nil {
			err = part.mapping(part.seg, part.sizeBytes)
		}
		if err != nil {
			return geometry{}, 0, err
		}
	}
	return of.geometry, place.reader, nil
}

// readSuperblock reads what a file begins with, before it is mapped.
func readSuperblock(kind segmentKind, fd int) (superblock, error) {
	b := make([]byte, superblockBytes)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return superblock{}, fmt.Errorf("read: %w", err)
	}
	return decodeSuperblock(kind, b[:n])
}
