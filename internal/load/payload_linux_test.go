package load

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"testing"
)

// A payload is a header and a pattern that is computed from it, so that any changed byte is detected.
// Its chain is a hash of the stages that it went through, and of its index among their emissions.
// testdata/payload.py has the same code.
const (
	headerBytes  = 24
	patternBytes = 61
	magic        = "LOAD" // no payload of msgpack begins with it
)

type header struct {
	tag   uint64 // of the request
	seq   uint32 // among the payloads of the request on the edge
	chain uint32
	total uint32 // bytes
}

// inputOf is the header of an input of a request.
func inputOf(tag uint64, seq, total uint32) header {
	var b [12]byte
	binary.LittleEndian.PutUint64(b[:], tag)
	binary.LittleEndian.PutUint32(b[8:], seq)
	return header{tag, seq, crc32.ChecksumIEEE(b[:]), total}
}

// next is the header of emission j, one of so many, of a stage for an input, or for the inputs of a join.
func next(stage string, j, of uint32, parts ...header) header {
	var b []byte
	for _, p := range parts {
		b = binary.LittleEndian.AppendUint32(b, p.chain)
	}
	b = append(b, stage[0], byte(j))
	h := parts[0]
	h.seq, h.chain = h.seq*of+j, crc32.ChecksumIEEE(b)
	return h
}

func (h header) payload() []byte {
	p := make([]byte, h.total)
	copy(p, magic)
	binary.LittleEndian.PutUint64(p[4:], h.tag)
	binary.LittleEndian.PutUint32(p[12:], h.seq)
	binary.LittleEndian.PutUint32(p[16:], h.chain)
	binary.LittleEndian.PutUint32(p[20:], h.total)
	sum := crc32.ChecksumIEEE(p[:headerBytes])
	var pattern []byte
	for i := range uint32(16) {
		pattern = binary.LittleEndian.AppendUint32(pattern, sum*(2*i+3))
	}
	for at := headerBytes; at < len(p); {
		at += copy(p[at:], pattern[:patternBytes])
	}
	return p
}

// sum is the checksum of the payload, with which callers report results.
func (h header) sum() uint32 { return crc32.ChecksumIEEE(h.payload()) }

// errPayload reports a payload that no stage and no caller has made.
var errPayload = errors.New("broken payload")

func parse(p []byte) (header, error) {
	if len(p) < headerBytes || string(p[:4]) != magic {
		return header{}, fmt.Errorf("%w: it has %d bytes, and no header", errPayload, len(p))
	}
	h := header{
		binary.LittleEndian.Uint64(p[4:]), binary.LittleEndian.Uint32(p[12:]),
		binary.LittleEndian.Uint32(p[16:]), binary.LittleEndian.Uint32(p[20:]),
	}
	if int(h.total) != len(p) || !bytes.Equal(h.payload(), p) {
		return h, fmt.Errorf("%w: its header is %+v, and its %d bytes do not match it", errPayload, h, len(p))
	}
	return h, nil
}

// TestSumsDiffer: the results of a request have different checksums, for payloads of any size. A payload of a header
// followed by the header's checksum would not do: all such payloads have the same checksum.
func TestSumsDiffer(t *testing.T) {
	c := cell{dimSecond: kindNone, dimStream: streamSeveral}
	for total := uint32(headerBytes); total < 2*headerBytes+patternBytes; total++ {
		seen := make(map[uint32]bool)
		for _, h := range c.results(&plan{Tag: 7, Inputs: 5, Total: total}) {
			seen[h.sum()] = true
		}
		if len(seen) != 5*c.emissions() {
			t.Errorf("results of %d bytes have %d checksums", total, len(seen))
		}
	}
}

// TestParseSeesEachByte: a payload with any byte changed is broken.
func TestParseSeesEachByte(t *testing.T) {
	p := next("first", 1, 3, inputOf(7, 2, 300)).payload()
	if h, err := parse(p); err != nil || h.seq != 7 {
		t.Fatalf("got %+v, %v", h, err)
	}
	for i := range p {
		p[i] ^= 1
		if _, err := parse(p); !errors.Is(err, errPayload) {
			t.Errorf("the changed byte %d is not detected", i)
		}
		p[i] ^= 1
	}
	if _, err := parse(p[:len(p)-1]); err == nil {
		t.Error("a shorter payload is accepted")
	}
}
