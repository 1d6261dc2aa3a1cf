package wire_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/omnibus-runtime/omnibus/internal/pythontest"
	"github.com/omnibus-runtime/omnibus/internal/wire"
)

// TestPythonAgrees has the Python client read random messages of the table, and the same
// messages with one byte changed, for each of their first bytes: it reads those that Go
// reads, and writes them in the same bytes.
func TestPythonAgrees(t *testing.T) {
	type packet struct {
		Hex         string   `json:"hex"`
		Descriptors int      `json:"descriptors"`
		Changes     [][2]int `json:"changes"` // where, and the new byte
	}
	const seeds, first = 10, 300
	random := rand.New(rand.NewPCG(1, 2))
	var give []packet
	var want []string // in Go's bytes; empty: refused
	for seed := range seeds {
		for _, m := range examples(seed) {
			if k := m.Kind(); k >= wire.KindLanes && k <= wire.KindAfter {
				continue // the client says no lanes, and refuses these
			}
			b, err := wire.Append(nil, m, m.Kind().Descriptors())
			if err != nil {
				t.Fatalf("Append(%+v): %v", m, err)
			}
			p := packet{Hex: hex.EncodeToString(b), Descriptors: m.Kind().Descriptors(), Changes: [][2]int{}}
			want = append(want, again(t, b))
			for at := wire.HeaderSize; at < min(len(b), wire.HeaderSize+first); at++ {
				was := b[at]
				b[at] ^= byte(1 << random.IntN(8))
				if random.IntN(2) == 0 {
					b[at] = byte(random.IntN(8)) // enumerated values go up to 5
				}
				p.Changes = append(p.Changes, [2]int{at, int(b[at])})
				want = append(want, again(t, b))
				b[at] = was
			}
			give = append(give, p)
		}
	}
	process := pythontest.Start(t, pythontest.Command(t, "testdata/again.py"))
	process.Tell(give)
	var got []string
	if err := process.Answer(&got); err != nil {
		t.Fatal("the Python process has no answer: ", err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d answers to %d packets", len(got), len(want))
	}
	var said []string // for each answer
	for _, p := range give {
		said = append(said, p.Hex)
		for _, change := range p.Changes {
			said = append(said, fmt.Sprintf("%s with byte %d now %d", p.Hex, change[0], change[1]))
		}
	}
	read, refused := 0, 0
	for i, hex := range want {
		if hex != got[i] {
			t.Errorf("%s\nGo reads     %s\nPython reads %s", said[i], hex, got[i])
		}
		if hex == "" {
			refused++
		} else {
			read++
		}
	}
	if min(read, refused) < len(want)/20 {
		t.Errorf("%d packets were read and %d refused: hardly any of one sort", read, refused)
	}
}

// again decodes a message and returns its encoding in hexadecimal digits, or "" if it is refused.
func again(t *testing.T, packet []byte) string {
	t.Helper()
	h, body, _, err := wire.Next(packet)
	if err != nil {
		t.Fatal(err) // the header was not changed
	}
	m, err := wire.Parse(h, body)
	if err != nil {
		return ""
	}
	b, err := wire.Append(nil, m, h.Descriptors)
	if err != nil {
		t.Fatalf("%+v was read and cannot be written: %v", m, err)
	}
	return hex.EncodeToString(b)
}

// TestPythonsWords: the Python client's words for transports of tensors are those of Go. Its names of enumerated values
// are generated with the messages.
func TestPythonsWords(t *testing.T) {
	process := pythontest.Start(t, pythontest.Command(t, "testdata/modes.py"))
	var got []string
	if err := process.Answer(&got); err != nil {
		t.Fatal("the Python process has no answer: ", err)
	}
	var want []string
	for v := wire.TransportDefault; v.Valid(); v++ {
		want = append(want, v.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("in Python tensors travel by %v, and in Go by %v", got, want)
	}
}
