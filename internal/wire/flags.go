package wire

// More flags of a payload.
const (
	// FlagForward: the message has no payload; that of Delivery is passed on by reference (Put).
	// The client has not finished the delivery, or has kept its payload.
	FlagForward = 16
	// FlagOwn: the segment holds this payload alone, and is forgotten with it (Put, Place).
	FlagOwn = 32
	// FlagAwaited: the host itself waits for the results of the request (Deliver) and may poll for
	// them, so its next message may be worth polling for.
	FlagAwaited = 64
)
