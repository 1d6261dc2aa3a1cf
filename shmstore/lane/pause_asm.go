//go:build amd64 || arm64

package lane

// pause tells the processor that this is a loop that polls memory. On amd64 it
// waits for some tens of nanoseconds, in which the peer can write to the cache line
// without losing it to this side's next load.
func pause()
