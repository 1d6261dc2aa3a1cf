package shmstore

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/golden"
)

// vectors are the bytes of a store on which two processes must agree.
// Numbers of 64 bits are text, for languages without such integers.
type vectors struct {
	Superblocks []superblockVector
	Lines       []lineVector
	Sizes       []sizesVector
	Pinned      string // the second entry of a ledger, with three pins
	WantRoomAt  int
}

type superblockVector struct {
	Kind                   string
	Slots, Reader          uint32
	Store, Arena, MaxBytes string
	Bytes                  string
}

type lineVector struct {
	Generation, Offset, Size string
	State                    string
	Codec                    uint32
	Bytes                    string
}

type sizesVector struct{ Slots, Directory, Ledger int }

func makeVectors() (v vectors) {
	for i, kind := range []segmentKind{kindDirectory, kindLedger} {
		sb := superblock{kind: kind, reader: ReaderID(i * 63), geometry: geometry{ //nolint:gosec // small
			store: 0xfeed_face_cafe_beef, arena: 64<<20 + uint64(i), maxObject: 32 << 20, slots: 65_536,
		}}
		b := sb.encode()
		v.Superblocks = append(v.Superblocks, superblockVector{
			Kind: string(rune(kind)), Slots: sb.slots, Reader: uint32(sb.reader),
			Store: fmt.Sprint(sb.store), Arena: fmt.Sprint(sb.arena), MaxBytes: fmt.Sprint(sb.maxObject),
			Bytes: hex.EncodeToString(b[:]),
		})
	}
	for _, s := range []state{stateFree, stateLive, stateClosing} {
		const generation, offset, size, codec = maxGeneration - 77, 1<<40 + 64, 1<<33 + 5, 4
		directory := alignedBytes(directoryBytes(2))
		ln := &linesOf(directory, 2)[1]
		ln.word.store(wordOf(generation, s))
		ln.offset, ln.size, ln.codec = offset, size, codec
		v.Lines = append(v.Lines, lineVector{
			Generation: fmt.Sprint(uint64(generation)), Offset: fmt.Sprint(uint64(offset)), Size: fmt.Sprint(uint64(size)),
			State: s.String(), Codec: codec,
			Bytes: hex.EncodeToString(directory[directoryBytes(1):directoryBytes(2)]),
		})
	}
	ledger := alignedBytes(ledgerBytes(2))
	entriesOf(ledger, 2)[1].pin.Store(3)
	v.Pinned = hex.EncodeToString(ledger[ledgerBytes(1):])
	directory := alignedBytes(directoryBytes(1))
	wantRoomOf(directory).Store(1)
	v.WantRoomAt = bytes.IndexByte(directory, 1)
	for _, slots := range []int{1, 64, 65_536} {
		v.Sizes = append(v.Sizes, sizesVector{slots, directoryBytes(slots), ledgerBytes(slots)})
	}
	return v
}

// TestVectors: the layout is that of testdata/vectors.json. A change of the layout needs a new
// version, by which processes of different releases refuse each other.
func TestVectors(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the vectors are of machines with little-endian byte order")
	}
	golden.JSON(t, "testdata/vectors.json", makeVectors())
}
