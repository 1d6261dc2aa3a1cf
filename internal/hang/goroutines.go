package hang

import (
	"fmt"
	"io"
	"runtime"
	"time"
)

// Bounds of WriteGoroutines, in bytes.
const (
	firstDump = 1 << 20
	mostDump  = 64 << 20
	dumpChunk = 64 << 10 // the capacity of a pipe
)

// WriteGoroutines writes the stack of each goroutine. After the time within it starts no more writes of stacks.
func WriteGoroutines(to io.Writer, within time.Duration) error {
	began := time.Now()
	for text := stacks(); len(text) > 0; {
		n := min(dumpChunk, len(text))
		if _, err := to.Write(text[:n]); err != nil {
			return err
		}
		text = text[n:]
		if time.Since(began) > within && len(text) > 0 {
			_, err := fmt.Fprintf(to, "\n... %d bytes more, which were not read in time\n", len(text))
			return err
		}
	}
	return nil
}

func stacks() []byte {
	for size := firstDump; ; size *= 2 {
		text := make([]byte, size)
		if n := runtime.Stack(text, true); n < size || size >= mostDump {
			return text[:n]
		}
	}
}
