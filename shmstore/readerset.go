package shmstore

import (
	"iter"
	"math/bits"
	"strconv"
	"strings"
)

// MaxReaders is the number of readers a store can have besides the local one.
const MaxReaders = readerIndexes - 1

// readerIndexes is the number of bits in a ReaderSet.
const readerIndexes = 64

// ReaderID is the index of a reader in its store: 0 for the readers in the
// owner's process that share [Store.Local], 1 to 63 for the others. An index
// is used again after its reader was removed.
type ReaderID uint8

// LocalReader is the index of [Store.Local].
const LocalReader ReaderID = 0

// ReaderSet is a set of readers, one bit an index.
type ReaderSet uint64

// Readers returns the set of the given readers. Indexes from 64 on name no
// reader and are left out.
func Readers(ids ...ReaderID) ReaderSet {
	var set ReaderSet
	for _, id := range ids {
		set |= 1 << id
	}
	return set
}

// Has reports whether id is in the set.
func (s ReaderSet) Has(id ReaderID) bool { return s>>id&1 != 0 }

// All iterates over the set in ascending order.
func (s ReaderSet) All() iter.Seq[ReaderID] {
	return func(yield func(ReaderID) bool) {
		for rest := uint64(s); rest != 0; rest &= rest - 1 {
			if !yield(ReaderID(bits.TrailingZeros64(rest))) {
				return
			}
		}
	}
}

// String gives the form used in error messages: {0 3 17}.
func (s ReaderSet) String() string {
	var b strings.Builder
	b.WriteByte('{')
	for id := range s.All() {
		if b.Len() > 1 {
			b.WriteByte(' ')
		}
		b.WriteString(strconv.Itoa(int(id)))
	}
	b.WriteByte('}')
	return b.String()
}
