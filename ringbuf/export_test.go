package ringbuf

// Marks returns where the room of a ring in strict FIFO order ends and begins:
// the start and end that the plain ring's pictures draw. It is for tests.
func (r *Ring) Marks() (start, end uint64) {
	if y := r.recs.youngest(); y != none {
		return r.start, r.recs[y].end()
	}
	return r.start, r.start
}

// CheckLayout runs New's checks for a buffer that no test wants to make.
func CheckLayout(sizeBytes uint64, opts Options) error {
	_, err := newGeometry(sizeBytes, opts)
	return err
}
