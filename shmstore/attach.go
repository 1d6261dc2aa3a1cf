package shmstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
)

// Attaching takes four messages over a connection that keeps message bounds.
//
//	reader  hello     the reader's process id                      no descriptor
//	owner   geometry  the store's identity and sizes, the index    no descriptor
//	reader  ledger    the reader's ledger                          1 descriptor
//	owner   grant     the store's segments                         3 descriptors
//
// In place of the geometry the owner may send a refusal with a reason.
//
// The order matters: the owner sends the store's descriptors only
// after its evictions scan the ledger, so that they miss no pin.
//
// Every message is 64 bytes, in the byte order of the machine:
//
//	offset  size  field
//	     0     8  magic "OMNIBUS@"
//	     8     4  layout version
//	    12     4  message
//	    16     8  hello: process id; others: identity of the store
//	    24     8  geometry: arena bytes
//	    32     8  geometry: largest object in bytes
//	    40     4  geometry: slots
//	    44     4  geometry: reader index
//	    48     4  refusal: reason
//	    52    12  zero
const messageBytes = 64

var messageMagic = [8]byte{'O', 'M', 'N', 'I', 'B', 'U', 'S', '@'}

type messageKind uint32

const (
	messageHello messageKind = 1 + iota
	messageGeometry
	messageLedger
	messageGrant
	messageRefusal
)

// The reasons of a refusal, as they are encoded.
const (
	reasonOther uint32 = iota
	reasonTooManyReaders
	reasonClosed
)

// grantDescriptors is the number of descriptors in a grant: arena, directory
// and account, in this order.
const grantDescriptors = 3

// attachTimeout bounds the whole exchange, and so the writer's wait for a peer.
const attachTimeout = 5 * time.Second

// message is one of the five messages.
type message struct {
	kind   messageKind
	pid    uint64 // hello only; geometry is zero then
	reader ReaderID
	reason uint32 // refusal only
	geometry
}

func (m message) encode() (b [messageBytes]byte) {
	copy(b[:], messageMagic[:])
	binary.NativeEndian.PutUint32(b[8:], layoutVersion)
	binary.NativeEndian.PutUint32(b[12:], uint32(m.kind))
	binary.NativeEndian.PutUint64(b[16:], m.store|m.pid)
	binary.NativeEndian.PutUint64(b[24:], m.arena)
	binary.NativeEndian.PutUint64(b[32:], m.maxObject)
	binary.NativeEndian.PutUint32(b[40:], m.slots)
	binary.NativeEndian.PutUint32(b[44:], uint32(m.reader))
	binary.NativeEndian.PutUint32(b[48:], m.reason)
	return b
}

// decodeMessage accepts exactly the bytes that encode makes of a message of that kind.
func decodeMessage(b []byte, want messageKind) (message, error) {
	if len(b) != messageBytes || [8]byte(b[:8]) != messageMagic {
		return message{}, fmt.Errorf("%w: %d bytes that are no message of this protocol", ErrProtocol, len(b))
	}
	if v := binary.NativeEndian.Uint32(b[8:]); v != layoutVersion {
		return message{}, fmt.Errorf("%w: the peer speaks layout version %d, this is %d: use the same release on both sides", ErrProtocol, v, layoutVersion)
	}
	m := message{kind: messageKind(binary.NativeEndian.Uint32(b[12:]))}
	switch {
	case m.kind == messageRefusal && want == messageGeometry:
		return message{}, refusal(binary.NativeEndian.Uint32(b[48:]))
	case m.kind != want:
		return message{}, fmt.Errorf("%w: message %d instead of %d", ErrProtocol, m.kind, want)
	case want == messageRefusal:
		m.reason = binary.NativeEndian.Uint32(b[48:])
	}
	switch identity := binary.NativeEndian.Uint64(b[16:]); want {
	case messageHello:
		m.pid = identity
	default:
		m.store = identity
	}
	m.arena = binary.NativeEndian.Uint64(b[24:])
	m.maxObject = binary.NativeEndian.Uint64(b[32:])
	m.slots = binary.NativeEndian.Uint32(b[40:])
	reader := binary.NativeEndian.Uint32(b[44:])
	m.reader = ReaderID(reader & (readerIndexes - 1))
	if [messageBytes]byte(b) != m.encode() {
		return message{}, fmt.Errorf("%w: reserved bytes of message %d are in use", ErrProtocol, m.kind)
	}
	return m, m.check()
}

// check bounds the fields of a message.
func (m message) check() error {
	if m.kind != messageGeometry {
		if g := (geometry{store: m.store}); m.geometry != g || m.reader != 0 {
			return fmt.Errorf("%w: message %d carries a geometry", ErrProtocol, m.kind)
		}
		return nil
	}
	if m.reader == LocalReader {
		return fmt.Errorf("%w: index 0 is the owner's own", ErrProtocol)
	}
	return m.geometry.check()
}

// reasonOf encodes an error as the reason of a refusal.
func reasonOf(why error) uint32 {
	switch {
	case errors.Is(why, ErrTooManyReaders):
		return reasonTooManyReaders
	case errors.Is(why, ErrClosed):
		return reasonClosed
	default:
		return reasonOther
	}
}

// refusal returns the error of a reader that the owner refuses.
func refusal(reason uint32) error {
	switch reason {
	case reasonTooManyReaders:
		return fmt.Errorf("refused by the owner: %w", ErrTooManyReaders)
	case reasonClosed:
		return fmt.Errorf("refused by the owner: %w", ErrClosed)
	default:
		return fmt.Errorf("%w: refused by the owner for reason %d", ErrProtocol, reason)
	}
}
