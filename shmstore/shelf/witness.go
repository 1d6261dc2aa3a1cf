package shelf

// Witness is for whoever has made the open file description of a taker, with
// [Describe], and keeps it: it sees by it whether anybody but that taker has a value, and
// can take it over. The taker's claims last until both have closed it, so that nobody
// else takes what a process had that has died until the witness has seen to it.
type Witness struct {
	fd    int
	first uint64
}

// NewWitness takes the descriptor over.
func NewWitness(fd int, first uint64) *Witness { return &Witness{fd: fd, first: first} }

// Alone reports whether nobody but the taker has the value of a number.
func (w *Witness) Alone(number uint64) bool { return !lockedElsewhere(w.fd, number-w.first) }

// Share makes the taker's lock a shared one, or gets one, if nobody else has the value. Who
// keeps account shares it, with [Taker.Share], and from there on the taker's is not needed.
func (w *Witness) Share(number uint64) bool { return shareByte(w.fd, number-w.first) }

// Close lets go of what the taker had, if that is gone. Nothing is called after it.
func (w *Witness) Close() { closeDescriptor(w.fd) }
