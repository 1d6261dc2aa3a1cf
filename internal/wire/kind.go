package wire

// Kind says what a message is.
type Kind uint16

// Direction says who sends a message.
type Direction uint8

// The directions; a message may have several.
const (
	ToHost   Direction = 1
	ToClient Direction = 2
	ToPeer   Direction = 4 // from one client to another
)

// kindInfo is what is known of a kind without its fields.
type kindInfo struct {
	name        string
	direction   Direction
	descriptors int // how many come with the message
}

// info returns what is known of k, and nil when it is no kind.
func (k Kind) info() *kindInfo {
	if int(k) >= len(kinds) || kinds[k].name == "" {
		return nil
	}
	return &kinds[k]
}

// Known reports whether k is a kind of message.
func (k Kind) Known() bool { return k.info() != nil }

// String returns the name that the protocol gives the message.
func (k Kind) String() string {
	if info := k.info(); info != nil {
		return info.name
	}
	return word(nil, k, "kind")
}

// Direction says who sends messages of this kind; 0 when it is no kind.
func (k Kind) Direction() Direction {
	if info := k.info(); info != nil {
		return info.direction
	}
	return 0
}

// Descriptors returns how many descriptors come with a message of this kind.
func (k Kind) Descriptors() int {
	if info := k.info(); info != nil {
		return info.descriptors
	}
	return 0
}
