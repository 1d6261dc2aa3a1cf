package chaos

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// A payload names its request, level and sequence, so that its reader can check that
// it is the right one, complete and in order:
//
//	offset  type  field
//	0       u32   CRC-32 of all that follows
//	4       u32   the request's tag
//	8       u16   level << 13 | sequence
//	10            filling, which follows from the 6 bytes before
//
// All of it, its size too, follows from tag, level and sequence.
// testdata/payload.py does the same.
const (
	headerBytes = 10
	seqBits     = 13

	// maxPayloadBytes is the size of the largest payload.
	maxPayloadBytes = 300 << 10
)

// A level names the stage that made a payload.
const (
	levelInput = iota
	levelA
	levelB
	levelE
	levelC
)

// payload makes the payload of a request, level and sequence.
func payload(tag uint32, level int, seq uint64) []byte {
	var id [6]byte
	binary.LittleEndian.PutUint32(id[:], tag)
	binary.LittleEndian.PutUint16(id[4:], uint16(level<<seqBits|int(seq)))
	hash := crc32.ChecksumIEEE(id[:])
	pattern := make([]byte, 0, 64)
	for i := range uint32(16) {
		pattern = binary.LittleEndian.AppendUint32(pattern, hash*(2*i+1))
	}
	pattern = pattern[:61] // so that it looks different at each multiple of a power of two
	size := payloadSize(hash)
	p := make([]byte, 4, size+len(pattern))
	p = append(p, id[:]...)
	p = append(p, bytes.Repeat(pattern, (size-headerBytes)/len(pattern)+1)...)[:size]
	binary.LittleEndian.PutUint32(p, crc32.ChecksumIEEE(p[4:]))
	return p
}

// payloadSize draws a size: from 10 bytes, which travel in messages, to 300
// KiB, most of them small.
func payloadSize(hash uint32) int {
	n := hash >> 3
	switch hash & 7 {
	case 0, 1, 2:
		return headerBytes + int(n%502)
	case 3, 4, 5:
		return 1<<10 + int(n%(20<<10))
	case 6:
		return 30<<10 + int(n%(70<<10))
	default:
		return 100<<10 + int(n%(200<<10+1))
	}
}

// verify checks a payload and returns its request's tag.
func verify(p []byte, level int, seq uint64) (tag uint32, err error) {
	if len(p) < headerBytes {
		return 0, fmt.Errorf("a payload of %d bytes", len(p))
	}
	if crc32.ChecksumIEEE(p[4:]) != binary.LittleEndian.Uint32(p) {
		return 0, errors.New("the checksum is wrong")
	}
	tag = binary.LittleEndian.Uint32(p[4:])
	if got, want := binary.LittleEndian.Uint16(p[8:]), uint16(level<<seqBits|int(seq)); got != want {
		return tag, fmt.Errorf("request %#x: level %d, sequence %d instead of level %d, sequence %d",
			tag, got>>seqBits, got&(1<<seqBits-1), level, seq)
	}
	if want := payload(tag, level, seq); !bytes.Equal(p, want) {
		return tag, fmt.Errorf("request %#x, level %d, sequence %d: %d bytes that differ from the %d that were sent", tag, level, seq, len(p), len(want))
	}
	return tag, nil
}
