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
	// FlagAwaited: the host itself waits for the results of the request (Deliver). It may
	// look for them, and looking for its next message may pay.
	FlagAwaited = 64
)
