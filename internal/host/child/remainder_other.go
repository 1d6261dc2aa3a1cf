//go:build !unix

package child

import (
	"io"
	"os"
	"time"
)

// outputWait is how long output is read after the death of a process, where what lies
// in a pipe cannot be told from what is yet to come.
const outputWait = 500 * time.Millisecond

// stopWaiting has whoever reads a pipe come to an end.
func stopWaiting(pipe *os.File) { time.AfterFunc(outputWait, func() { _ = pipe.Close() }) }

// Read is not called: the pipe is closed when time is up.
func (r *remainder) Read([]byte) (int, error) { return 0, io.EOF }
