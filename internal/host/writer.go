package host

import (
	"io"
	"os"
	"sync"
)

// shared makes a writer safe for concurrent writers of whole lines. A file is safe: the kernel keeps
// each write whole.
func shared(w io.Writer) io.Writer {
	if _, file := w.(*os.File); file {
		return w
	}
	return &sharedWriter{w: w}
}

type sharedWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (s *sharedWriter) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}
