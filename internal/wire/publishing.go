package wire

// Publish puts a descriptor under a name, where every attached client finds it.
//
//wire:message 88 to the host; one descriptor
type Publish struct {
	Token  uint32
	Number uint32
	Pool   [16]byte // with the number: the name
	Size   uint64   // in bytes, of the memory behind the descriptor; the host only passes it on
}

// Published answers Publish.
//
//wire:message 89 to the client
type Published struct {
	Token uint32
}

// Withdraw removes a name that the client has published.
//
//wire:message 90 to the host
type Withdraw struct {
	Number uint32
	Pool   [16]byte
}

// Find asks for the descriptor under a name.
//
//wire:message 91 to the host
type Find struct {
	Token  uint32
	Number uint32
	Pool   [16]byte
}

// Found answers Find. Its descriptors are a duplicate of the published one, and the pidfd of its
// publisher.
//
//wire:message 92 to the client; two descriptors: the published one, and its owner's pidfd
type Found struct {
	Token uint32
	Owner uint32 // the publisher: one number for each process; 0: the host
	PID   uint32 `wire:"reserved=4"`
	Size  uint64 // as published
}
