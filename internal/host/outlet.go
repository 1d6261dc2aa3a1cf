package host

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"time"
)

// Outlet takes what a run has to say to people, whole lines of all who write them. It
// waits for whoever reads, until the run is to end: from then on what nobody takes for
// a second is lost, and all that comes behind it. A reader that is stopped, such as a
// pager, keeps a run from going on, but not from ending.
type Outlet struct {
	to     io.Writer
	ending chan struct{}
	once   sync.Once

	mu     sync.Mutex // one write at a time
	unread bool
}

// NewOutlet makes an outlet of a writer.
func NewOutlet(to io.Writer) *Outlet { return &Outlet{to: to, ending: make(chan struct{})} }

// unreadWait is how long a reader has for one write, once the run is to end.
const unreadWait = time.Second

var errUnread = errors.New("nobody reads what is written")

// Hurry says that the run is to end. It may be called again.
func (o *Outlet) Hurry() { o.once.Do(func() { close(o.ending) }) }

// Write implements io.Writer.
func (o *Outlet) Write(p []byte) (n int, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unread {
		return 0, errUnread
	}
	written := make(chan struct{})
	text := bytes.Clone(p) // may be read when this has returned
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
