package wire

// Kind is the type of a message on the wire.
type Kind uint16

// Direction is a set of bits that say from where to where a message goes.
type Direction uint8

// The directions.
const (
	ToHost   Direction = 1
	ToClient Direction = 2
	ToPeer   Direction = 4 // from one client to another
)

// kindInfo has the properties of a kind, except its fields.
type kindInfo struct {
	name        string
	direction   Direction
	descriptors int // number that comes with the message
}

// info returns the properties of k, or nil if no message has this kind.
func (k Kind) info() *kindInfo {
	if int(k) >= len(kinds) || kinds[k].name == "" {
		return nil
	}
	return &kinds[k]
}

// Known reports whether a message has this kind.
func (k Kind) Known() bool { return k.info() != nil }

// String returns the message's name in the protocol.
func (k Kind) String() string {
	if info := k.info(); info != nil {
		return info.name
	}
	return word(nil, k, "kind")
}

// Direction returns the directions of messages of this kind; 0 if no message has it.
func (k Kind) Direction() Direction {
	if info := k.info(); info != nil {
		return info.direction
	}
	return 0
}

// Descriptors returns the number of descriptors that come with a message of this kind.
func (k Kind) Descriptors() int {
	if info := k.info(); info != nil {
		return info.descriptors
	}
	return 0
}
