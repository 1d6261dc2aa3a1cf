package wire

// Flags of Submit.
const (
	// SubmitTry has the request refused with CodeOverloaded rather than wait for a place.
	SubmitTry = 1
	// SubmitTell has the host say with Submitted that the request has begun.
	SubmitTell = 2
)

// OwnSource is the bit that the numbers have which clients choose for their requests.
const OwnSource = 1 << 31

// Submit opens a request.
//
//wire:message 48 to the host
type Submit struct {
	TimeLeft int64 // see [deadlines](#deadlines)
	Flags    uint8 // 1: fail with code 11 rather than wait for a place; 2: say `submitted`
	Trace    Trace
	Source   uint32 // names the request on this connection: the client chooses it, with bit 31, and higher than all before it
}

// Submitted says that a request has begun whose Submit has SubmitTell.
//
//wire:message 49 to the client
type Submitted struct {
	Source  uint32
	Request uint64 // names it on the bus
}

// CloseSend ends the inputs of a request.
//
//wire:message 50 to the host; the inputs end here
type CloseSend struct {
	Source uint32
}

// AbortRequest ends a request.
//
//wire:message 51 to the host
type AbortRequest struct {
	Source uint32
	Code   Code   // 9: its deadline is over by the client's clock; else 0
	Text   string `wire:"text"`
}

// Close says that no more results of a request are wanted.
//
//wire:message 52 to the host; no more results are wanted: aborts the request if it is open
type Close struct {
	Source uint32
}
