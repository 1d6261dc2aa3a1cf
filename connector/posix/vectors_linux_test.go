package posix

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/internal/golden"
)

// vectors are the bytes that others read, for clients in other languages. Numbers of 64
// bits are text, for those who have none.
type vectors struct {
	Records   []recordVector
	Addresses []addressVector
	Cells     []cellsVector
}

type recordVector struct {
	Readers, Slots   uint32
	PID, Store, Base string
	Bytes            string
	Numbers          map[string]string // by generation
}

type addressVector struct{ From, To, Key, Hash, Label string }

type cellsVector struct {
	Slots, Cells int
	Hash         string
	Slot         uint32
	Cell         string
}

func decimal(n uint64) string { return fmt.Sprintf("%d", n) }

func makeVectors() (v vectors) {
	for _, r := range []record{
		{readers: 1, pid: 1234, store: 0xfeed_face_cafe_beef, base: math.MaxUint64, slots: 64},
		{readers: MaxReaders, pid: 1 << 22, store: 1, base: 0x0123_4567_89ab_cdef, slots: maxSlots},
	} {
		w := recordVector{
			Readers: r.readers, Slots: r.slots, PID: decimal(r.pid), Store: decimal(r.store), Base: decimal(r.base),
			Bytes: hex.EncodeToString(r.encode()), Numbers: make(map[string]string),
		}
		for _, generation := range []uint64{1, 2, 1 << 40} {
			w.Numbers[decimal(generation)] = decimal(r.number(generation))
		}
		v.Records = append(v.Records, w)
	}
	for _, a := range []address{
		{connector.Edge{From: "a", To: "b"}, "k"},
		{connector.Edge{From: "thinker", To: "talker"}, "request-1_thinker_0"},
		{connector.Edge{From: "übersetzer", To: "発話"}, "schlüssel 鍵"},
		{connector.Edge{From: "ab", To: "c"}, "d"},
		{connector.Edge{From: "a", To: "bc"}, "d"},
		{connector.Edge{From: "0", To: "1"}, strings.Repeat("k", connector.MaxKeyBytes)},
	} {
		label := make([]byte, a.labelBytes())
		a.label(label)
		v.Addresses = append(v.Addresses, addressVector{
			From: a.edge.From, To: a.edge.To, Key: a.key, Hash: decimal(a.hash()), Label: hex.EncodeToString(label),
		})
	}
	for i, slots := range []int{1, 2, 3, 64, 65, 65_536, 100_000} {
		hash := address{connector.Edge{From: "a", To: "b"}, decimal(uint64(i))}.hash() //nolint:gosec // small
		slot := uint32(slots - 1)                                                      //nolint:gosec // small
		v.Cells = append(v.Cells, cellsVector{
			Slots: slots, Cells: indexCells(slots), Hash: decimal(hash), Slot: slot, Cell: decimal(cellOf(hash, slot)),
		})
	}
	return v
}

// TestVectors: the layout is what testdata/vectors.json says, which the Python client
// reads and writes as well. A layout that changes takes a new version.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the vectors are of machines with little-endian byte order")
	}
	golden.JSON(t, "testdata/vectors.json", makeVectors())
}
