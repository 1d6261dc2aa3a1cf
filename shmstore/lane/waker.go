package lane

// Waker is how one side of a lane sleeps, and how it wakes the other.
//
// A wake-up is never lost: one that comes while nobody is parked makes the next
// Park return at once. Several may become one, and Park may return without any.
type Waker interface {
	// Park sleeps until this side is woken. Only the goroutine that uses the
	// side calls it. An error means that it can sleep no more.
	Park() error
	// Unpark wakes this side. Any goroutine may call it.
	Unpark()
	// Wake wakes the other side. Any goroutine may call it.
	Wake()
}

// ChannelWakers returns the wakers of the two sides of a lane within one
// process.
func ChannelWakers() (sender, receiver Waker) {
	a, b := make(chan struct{}, 1), make(chan struct{}, 1)
	return channelWaker{own: a, peer: b}, channelWaker{own: b, peer: a}
}

type channelWaker struct{ own, peer chan struct{} }

func (w channelWaker) Park() error {
	<-w.own
	return nil
}

func (w channelWaker) Unpark() { put(w.own) }
func (w channelWaker) Wake()   { put(w.peer) }

func put(tokens chan<- struct{}) {
	select {
	case tokens <- struct{}{}:
	default: // one that is there already is enough
	}
}
