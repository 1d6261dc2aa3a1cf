package accounts

// Location is where a payload for another process lies. The zero value: in the message.
type Location struct {
	Seg      *Segment // nil: in the message
	Offset   uint64
	Alone    bool // the segment is for this payload alone
	MaxKnown int  // as Alone, if the other process has that many segments already; 0: no bound
}
