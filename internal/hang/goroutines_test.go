package hang

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// stick starts a thousand goroutines that wait until the test ends.
func stick(t *testing.T) {
	t.Helper()
	until := make(chan struct{})
	t.Cleanup(func() { close(until) })
	var there sync.WaitGroup
	for range 1000 {
		there.Add(1)
		go stuckHere(&there, until)
	}
	there.Wait()
}

func stuckHere(there *sync.WaitGroup, until chan struct{}) {
	there.Done()
	<-until
}

// TestWriteGoroutines: the text has the stack of each goroutine, in writes that fit into a pipe.
func TestWriteGoroutines(t *testing.T) {
	stick(t)
	var text strings.Builder
	largest := 0
	err := WriteGoroutines(writer(func(p []byte) (int, error) {
		largest = max(largest, len(p))
		return text.Write(p)
	}), time.Hour)
	const stuck = "\ncreated by github.com/omnibus-runtime/omnibus/internal/hang.stick "
	if n := strings.Count(text.String(), stuck); err != nil || n < 1000 || largest > dumpChunk {
		t.Errorf("%d goroutines of 1000 or more, at most %d bytes at a time, %v", n, largest, err)
	}
}

// TestWriteGoroutinesToSlowReader: the writes end after the time limit, or at an error.
func TestWriteGoroutinesToSlowReader(t *testing.T) {
	stick(t)
	synctest.Test(t, func(t *testing.T) {
		var text strings.Builder
		began := time.Now()
		err := WriteGoroutines(writer(func(p []byte) (int, error) {
			<-time.After(time.Second)
			return text.Write(p)
		}), 1500*time.Millisecond)
		cut := strings.Contains(text.String(), "bytes more, which were not read in time")
		if took := time.Since(began); err != nil || took != 3*time.Second || !cut {
			t.Errorf("%v, after %v, %d bytes", err, took, text.Len())
		}
	})
	broken := errors.New("a broken pipe")
	if err := WriteGoroutines(writer(func([]byte) (int, error) { return 0, broken }), time.Hour); !errors.Is(err, broken) {
		t.Error(err)
	}
}

type writer func(p []byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }
