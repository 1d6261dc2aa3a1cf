package wire

import (
	"encoding/binary"
	"fmt"
)

// HeaderSize is the length of a message's header, in bytes:
//
//	offset  type  field
//	0       u32   length of the whole message, with the header
//	4       u16   kind
//	6       u8    number of the packet's descriptors that belong to the message
//	7       u8    1: a receiver that does not know the kind skips the message; else 0
const HeaderSize = 8

// skippable is the bit of a header's last byte that lets a receiver skip a message of unknown
// kind. No other bit has a meaning yet.
const skippable = 1

// Header is the decoded header of a message.
type Header struct {
	Kind        Kind
	Descriptors int // number of the packet's descriptors that belong to the message
	// Skip is set for a message of unknown kind that its sender allows to skip. The receiver closes
	// its descriptors.
	Skip bool
}

// Append appends m to b, and returns the longer slice. descriptors is the number of descriptors
// that travel with the message. The text of an error that is longer than [MaxText] is cut; any
// other exceeded bound is an error that is [CodeInvalid], and leaves b unchanged.
//
// Append does not keep m. A single message always fits into a packet; the caller checks whether b
// still does.
func Append(b []byte, m Message, descriptors int) ([]byte, error) {
	start := len(b)
	longer, kind, err := appendMessage(b, m)
	if err == nil {
		err = checkMessage(CodeInvalid, kind, len(longer)-start, descriptors)
	}
	if err != nil {
		return b, err
	}
	header := (*[HeaderSize]byte)(longer[start:])
	binary.LittleEndian.PutUint32(header[0:], uint32(len(longer)-start))
	binary.LittleEndian.PutUint16(header[4:], uint16(kind))
	header[6] = uint8(descriptors)
	return longer, nil
}

// Next cuts the first message off a packet, which must not be empty. rest is the remaining packet,
// empty after the last message. An error is [ErrProtocol]; the packet is then unusable.
func Next(packet []byte) (h Header, body, rest []byte, err error) {
	if len(packet) > MaxPacket {
		return Header{}, nil, nil, protocolError("packet of %d bytes, and at most %d are allowed", len(packet), MaxPacket)
	}
	if len(packet) < HeaderSize {
		return Header{}, nil, nil, protocolError("%d bytes where a message begins; its header has %d", len(packet), HeaderSize)
	}
	length := binary.LittleEndian.Uint32(packet)
	h = Header{Kind: Kind(binary.LittleEndian.Uint16(packet[4:])), Descriptors: int(packet[6])}
	if length < HeaderSize || uint64(length) > uint64(len(packet)) {
		return Header{}, nil, nil, protocolError("%v of %d bytes, where its header has %d and the packet %d more", h.Kind, length, HeaderSize, len(packet))
	}
	if flags := packet[7]; flags&^skippable != 0 {
		return Header{}, nil, nil, protocolError("%v with %#x in byte 7 of its header, and only 0 and 1 mean something", h.Kind, flags)
	}
	if h.Skip = packet[7] == skippable && !h.Kind.Known(); h.Skip {
		return h, packet[HeaderSize:length:length], packet[length:], nil
	}
	if err := checkMessage(CodeProtocol, h.Kind, int(length), h.Descriptors); err != nil {
		return Header{}, nil, nil, err
	}
	return h, packet[HeaderSize:length:length], packet[length:], nil
}

// Parse reads the body of a message whose header came from [Next]. An error is [ErrProtocol].
func Parse(h Header, body []byte) (Message, error) {
	m := newMessage(h.Kind)
	if m == nil {
		return nil, protocolError("%v: no message has this kind", h.Kind)
	}
	if err := Decode(body, m); err != nil {
		return nil, err
	}
	return m, nil
}

// Decode reads a message into m, whose type the caller has chosen by the header's kind. It sets
// every field of m; after an error, which is [ErrProtocol], their values are undefined. Slices of m
// are reused, but not the map of attributes.
func Decode(body []byte, m Message) error {
	return readMessage(body, m)
}

// checkMessage checks a header against the bounds.
func checkMessage(code Code, k Kind, length, descriptors int) error {
	info := k.info()
	switch {
	case info == nil:
		return &Error{Code: code, Text: fmt.Sprintf("%v: no message has this kind", k)}
	case length > MaxPacket:
		return &Error{Code: code, Text: fmt.Sprintf("%v of %d bytes, and a packet holds at most %d", k, length, MaxPacket)}
	case descriptors != info.descriptors:
		return &Error{Code: code, Text: fmt.Sprintf("%v with %d descriptors, and it comes with %d", k, descriptors, info.descriptors)}
	}
	return nil
}
