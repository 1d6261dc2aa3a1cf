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
//	6       u8    how many of the packet's descriptors belong to it
//	7       u8    1: skip the message if you do not know its kind; else 0
const HeaderSize = 8

// skippable is the bit of the last byte of a header that has a receiver go on without a
// message whose kind it does not know. No other bit means anything yet.
const skippable = 1

// Header is what stands before the fields of a message.
type Header struct {
	Kind        Kind
	Descriptors int // how many of the packet's descriptors belong to the message
	// Skip is set for a message of a kind that this package does not know, and that its sender
	// says can be gone without. Its descriptors are the receiver's to close.
	Skip bool
}

// Append writes m behind b, and returns the longer slice. descriptors is how
// many of them will travel with the message. The text of an error that is longer
// than [MaxText] is cut; any other broken bound is an error that is
// [CodeInvalid], and leaves b as it was.
//
// Append does not keep m. Whether b still fits into a packet is for the caller
// to see: a message by itself always does.
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

// Next cuts the first message off a packet, which must not be empty. rest is
// what follows it, and empty behind the last message. An error is
// [ErrProtocol]; the packet is then of no more use.
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

// Parse reads the message behind a header that came from [Next]. An error is
// [ErrProtocol].
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

// Decode reads a message into m, whose type the caller has chosen by the
// header's kind. It sets every field of m; after an error, which is [ErrProtocol], they mean nothing.
// Lists that m has are used again, all but attributes.
func Decode(body []byte, m Message) error {
	return readMessage(body, m)
}

// checkMessage checks what a header says against the bounds.
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
