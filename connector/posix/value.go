package posix

import (
	"encoding/binary"

	"github.com/omnibus-runtime/omnibus/connector"
)

// An address is where a value lies.
type address struct {
	edge connector.Edge
	key  string
}

// tailBytes are behind edge and key: their lengths, two bytes each.
const tailBytes = 6

// labelBytes is what an address takes behind its value.
func (a address) labelBytes() int { return len(a.edge.From) + len(a.edge.To) + len(a.key) + tailBytes }

// label writes the address behind a value. All lengths were checked to be small.
func (a address) label(dst []byte) {
	at := 0
	for i, s := range []string{a.edge.From, a.edge.To, a.key} {
		at += copy(dst[at:], s)
		binary.LittleEndian.PutUint16(dst[len(dst)-tailBytes+2*i:], uint16(len(s))) //nolint:gosec // at most connector.MaxKeyBytes
	}
}

// unlabel returns the value of a payload, if it is of this address.
func (a address) unlabel(payload []byte) (value []byte, ok bool) {
	size := len(payload) - a.labelBytes()
	if size < 0 {
		return nil, false
	}
	at, tail := size, len(payload)-tailBytes
	for i, s := range []string{a.edge.From, a.edge.To, a.key} {
		if int(binary.LittleEndian.Uint16(payload[tail+2*i:])) != len(s) || string(payload[at:at+len(s)]) != s {
			return nil, false
		}
		at += len(s)
	}
	return payload[:size:size], true
}

// hash is the same in all processes: FNV-1a, and then mixed, because its upper bits
// say little of short keys.
func (a address) hash() uint64 {
	const (
		offset = 14695981039346656037
		prime  = 1099511628211
	)
	h := uint64(offset)
	for _, s := range []string{a.edge.From, a.edge.To, a.key} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * prime
		}
		h = (h ^ 0xff) * prime // no name has that byte
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
