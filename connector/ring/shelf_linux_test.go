package ring_test

import (
	"errors"
	"log/slog"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/omnibus-runtime/omnibus/connector"
	"github.com/omnibus-runtime/omnibus/connector/ring"
	"github.com/omnibus-runtime/omnibus/shmstore/shelf"
)

// counted is a payload that counts its releases.
type counted struct{ released *int }

func (counted) Bytes() []byte { return nil }
func (c counted) Release()    { *c.released++ }

func describe(t *testing.T, fd int) int {
	t.Helper()
	own, err := shelf.Describe(fd)
	if err != nil {
		t.Fatal(err)
	}
	return own
}

func taker(t *testing.T, fd int, first uint64) *shelf.Taker {
	t.Helper()
	got, err := shelf.Open(fd, first)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(got.Close)
	return got
}

// TestDeadReaderOfWhatIsNotPlaced has a reader take a value and die before the table learns
// of either: the value goes with it, and nobody else gets it.
func TestDeadReaderOfWhatIsNotPlaced(t *testing.T) {
	t.Run("next", func(t *testing.T) { testDeadReader(t, 0) })
	t.Run("far on", func(t *testing.T) { testDeadReader(t, shelf.Slots-1) }) // so many are busy
}

func testDeadReader(t *testing.T, busy int) {
	t.Helper()
	own, err := shelf.New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(own.Close)
	table := ring.NewTable(0, slog.Default())
	first := table.NewRange()
	own.Begin(first)
	on := table.Shelf(first, taker(t, describe(t, own.FD()), first))
	t.Cleanup(on.Close)

	reader := table.Reader()
	fd := describe(t, own.FD())
	duplicate, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	if !reader.Open(on, shelf.NewWitness(duplicate, first)) {
		t.Fatal("the reader is not let in")
	}

	for range busy {
		own.Put(shelf.Value{Size: 1})
	}
	passed, _ := own.Put(shelf.Value{Size: 1})
	own.Clear(passed - 1) // behind the one slot that was free
	number, ok := own.Put(shelf.Value{Size: 1})
	if far := number - first; !ok || (busy > 0) != (far > shelf.Slots+1) {
		t.Fatalf("number %d on", far)
	}
	own.Publish(number)
	dies := taker(t, fd, first)
	if _, ok := dies.Take(number, 0); !ok {
		t.Fatal("the value is not to be had")
	}
	dies.Close()
	reader.Leave()

	released := 0
	if err := table.Owner("a").PutOn(on, number, ring.Now(), edge, "k", counted{&released}); err != nil {
		t.Fatal(err)
	}
	if _, err := table.Get(edge, "k", 0); !errors.Is(err, connector.ErrNotFound) {
		t.Errorf("got what a dead reader had had: %v", err)
	}
	if _, ok := taker(t, describe(t, own.FD()), first).Take(number, 0); ok {
		t.Error("took what a dead reader had had")
	}
	if released != 1 {
		t.Errorf("released %d times, want once", released)
	}
}
