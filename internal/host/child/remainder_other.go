//go:build !unix

package child

import (
	"io"
	"os"
	"time"
)

// outputWait is how long output is read after the death of a process, on systems where the rest in a
// pipe cannot be told from later output.
const outputWait = 500 * time.Millisecond

// stopWaiting ends the reading of a pipe after outputWait.
func stopWaiting(pipe *os.File) { time.AfterFunc(outputWait, func() { _ = pipe.Close() }) }

// Read is not called: the pipe is closed after outputWait.
func (r *remainder) Read([]byte) (int, error) { return 0, io.EOF }
