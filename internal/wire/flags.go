package wire

// More flags of a payload.
const (
	// FlagForward: no payload comes with the message, that of Delivery is
	// passed on by reference (Emit, Put). The client has not finished it, or has
	// kept its payload.
	FlagForward = 16
	// FlagOwn: the segment holds this payload alone, and is forgotten with it
	// (Put).
	FlagOwn = 32
)
