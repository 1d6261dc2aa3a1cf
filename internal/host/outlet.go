package host

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// Outlet writes the output of a run, in whole lines, for all its writers. It waits for its reader until
// the run is to end. From then on a write that is not read within a second is dropped, and so are all
// later ones. A stopped reader, such as a pager, can delay a run but not keep it from ending.
type Outlet struct {
	to     io.Writer
	ending chan struct{}
	once   sync.Once

	mu     sync.Mutex // one write at a time
	unread bool
}

// NewOutlet makes an outlet of a writer.
func NewOutlet(to io.Writer) *Outlet { return &Outlet{to: to, ending: make(chan struct{})} }

// unreadWait is how long the reader has for one write once the run is to end.
const unreadWait = time.Second

var errUnread = errors.New("the output is not read")

// Hurry says that the run is to end. It may be called several times.
func (o *Outlet) Hurry() { o.once.Do(func() { close(o.ending) }) }

// Write implements io.Writer.
func (o *Outlet) Write(p []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unread {
		return 0, errUnread
	}
	written := make(chan struct{})
	text := bytes.Clone(p) // may be read after this call has returned
	var size int
	var failed error
	go func() {
		defer close(written)
		size, failed = o.to.Write(text)
	}()
	select {
	case <-written:
		return size, failed
	case <-o.ending:
	}
	patience := time.NewTimer(unreadWait)
	defer patience.Stop()
	select {
	case <-written:
		return size, failed
	case <-patience.C:
		o.unread = true
		return 0, errUnread
	}
}
