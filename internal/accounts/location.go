package accounts

// Location is where a payload lies that another process is to read. The zero value is in the
// message.
type Location struct {
	Seg      *Segment // nil: in the message
	Offset   uint64
	Alone    bool // the segment is for this payload alone
	MaxKnown int  // ... as well, where the other process knows that many; 0: however many
}
