package messages

import (
	"encoding/binary"
	"fmt"
)

// HandleSize is the length of a handle's binary form, in bytes.
const HandleSize = 40

// Handle names one object of one store. It is a plain value: neither a copy nor the
// handle itself keeps the object alive. A reader turns it into a lease to read the bytes;
// the store returns an error when the object is gone or the handle was damaged.
//
// The binary form is little endian, in field order:
//
//	 0  8  Store   identity of the store, unique for each store ever created
//	 8  8  Gen     generation of the slot, never reused
//	16  8  Offset  first payload byte in the store's arena
//	24  8  Size    payload bytes
//	32  4  Slot    line of the store's directory
//	36  4  Codec   how the payload is encoded (see package codec)
type Handle struct {
	Store  uint64
	Gen    uint64
	Offset uint64
	Size   uint64
	Slot   uint32
	Codec  uint32
}

// IsZero reports whether h names nothing. Generations start at 1, so that
// the zero value is never a real handle.
func (h Handle) IsZero() bool { return h.Gen == 0 }

// String gives the form used in error messages and reports.
func (h Handle) String() string {
	if h.IsZero() {
		return "handle(none)"
	}
	return fmt.Sprintf("handle(store %x slot %d gen %d: %d bytes at %d)", h.Store, h.Slot, h.Gen, h.Size, h.Offset)
}

// AppendBinary appends the binary form of h to b. It never fails.
func (h Handle) AppendBinary(b []byte) ([]byte, error) {
	b = binary.LittleEndian.AppendUint64(b, h.Store)
	b = binary.LittleEndian.AppendUint64(b, h.Gen)
	b = binary.LittleEndian.AppendUint64(b, h.Offset)
	b = binary.LittleEndian.AppendUint64(b, h.Size)
	b = binary.LittleEndian.AppendUint32(b, h.Slot)
	return binary.LittleEndian.AppendUint32(b, h.Codec), nil
}

// MarshalBinary returns the binary form of h.
func (h Handle) MarshalBinary() ([]byte, error) {
	return h.AppendBinary(make([]byte, 0, HandleSize))
}

// UnmarshalBinary reads the binary form. It checks the length only: the store checks
// whether the handle names an object.
func (h *Handle) UnmarshalBinary(b []byte) error {
	if len(b) != HandleSize {
		return fmt.Errorf("malformed handle: %d bytes instead of %d", len(b), HandleSize)
	}
	*h = Handle{
		Store:  binary.LittleEndian.Uint64(b[0:]),
		Gen:    binary.LittleEndian.Uint64(b[8:]),
		Offset: binary.LittleEndian.Uint64(b[16:]),
		Size:   binary.LittleEndian.Uint64(b[24:]),
		Slot:   binary.LittleEndian.Uint32(b[32:]),
		Codec:  binary.LittleEndian.Uint32(b[36:]),
	}
	return nil
}
