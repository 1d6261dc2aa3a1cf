package wire

// Publish puts a descriptor under a name, where all who are attached find it.
//
//wire:message 88 to the host; one descriptor
type Publish struct {
	Token  uint32
	Number uint32
	Pool   [16]byte // with the number: the name
	Size   uint64   // of what is behind the descriptor, in bytes: for the client that finds it
}

// Published answers Publish.
//
//wire:message 89 to the client
type Published struct {
	Token uint32
}

// Withdraw takes back what the client has published under a name.
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

// Found answers Find. Its descriptors are a duplicate of what was published, and
// the pidfd of the process that did.
//
//wire:message 92 to the client; two descriptors: what was published, and its owner's pidfd
type Found struct {
	Token uint32
	Owner uint32 // who published it: the same number for the same process; 0: the host
	PID   uint32 `wire:"reserved=4"`
	Size  uint64 // as published
}
