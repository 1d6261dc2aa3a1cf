package wire

// Flags of Submit.
const (
	// SubmitTry has the host refuse the request with CodeOverloaded if there is no permit, in place of a wait.
	SubmitTry = 1
	// SubmitTell has the host send Submitted when the request begins.
	SubmitTell = 2
)

// OwnSource is the bit of a number that a client has chosen for its request.
const OwnSource = 1 << 31

// Submit opens a request.
//
//wire:message 48 to the host
type Submit struct {
	TimeLeft int64 // see [deadlines](#deadlines)
	Flags    uint8 // 1: fail with code 11 if there is no permit; 2: say `submitted`
	Trace    Trace
	Source   uint32 // names the request on this connection: the client chooses it, with bit 31, and higher than all before it
}

// Submitted says that a request with SubmitTell has begun.
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
	Code   Code   // 9: the deadline is over by the client's clock; else 0
	Text   string `wire:"text"`
}

// Close gives up the results of a request.
//
//wire:message 52 to the host; the client wants no more results: aborts the request if it is open
type Close struct {
	Source uint32
}
