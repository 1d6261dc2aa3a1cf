package ledger

// Location is where a payload lies that another process is to read. The zero value is in the
// message.
type Location struct {
	Seg    *Segment // nil: in the message
	Offset uint64
	Own    bool // the segment is for this payload alone
	Most   int  // ... as well, where the other process knows that many; 0: however many
	Made   bool // a reference to it is the caller's
}

// Release ends the caller's reference, if there is one.
func (at Location) Release() {
	if at.Made {
		at.Seg.Release()
	}
}
