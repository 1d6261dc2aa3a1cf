package wire

// Message is one message of the protocol: a pointer to one of the structs of
// this package.
type Message interface {
	// Kind says which message it is.
	Kind() Kind
	// fields goes over the fields in the order of the wire.
	fields(c *coder)
}

// walk calls m.fields(c). It does so by the type that m has, because a call
// through the interface would move m and c to the heap: this way neither
// sending nor reading a message allocates.
func walk(m Message, c *coder) {
	switch m := m.(type) {
	case *Hello:
		m.fields(c)
	case *Welcome:
		m.fields(c)
	case *Refuse:
		m.fields(c)
	case *Failed:
		m.fields(c)
	case *Serve:
		m.fields(c)
	case *Serving:
		m.fields(c)
	case *Open:
		m.fields(c)
	case *Deliver:
		m.fields(c)
	case *Finish:
		m.fields(c)
	case *Release:
		m.fields(c)
	case *End:
		m.fields(c)
	case *Ended:
		m.fields(c)
	case *Over:
		m.fields(c)
	case *Leave:
		m.fields(c)
	case *Drain:
		m.fields(c)
	case *Segment:
		m.fields(c)
	case *Forget:
		m.fields(c)
	case *Emit:
		m.fields(c)
	case *Emitted:
		m.fields(c)
	case *Arena:
		m.fields(c)
	case *ArenaAt:
		m.fields(c)
	case *Sealed:
		m.fields(c)
	case *Reserve:
		m.fields(c)
	case *Grant:
		m.fields(c)
	case *Send:
		m.fields(c)
	case *Abort:
		m.fields(c)
	case *Offer:
		m.fields(c)
	case *Put:
		m.fields(c)
	case *Returned:
		m.fields(c)
	case *Spent:
		m.fields(c)
	case *Submit:
		m.fields(c)
	case *Submitted:
		m.fields(c)
	case *CloseSend:
		m.fields(c)
	case *AbortRequest:
		m.fields(c)
	case *Close:
		m.fields(c)
	case *Call:
		m.fields(c)
	case *Reply:
		m.fields(c)
	case *Bye:
		m.fields(c)
	default:
		panic("wire: a message that is not a pointer to a struct of this package")
	}
}

// Kind says which message it is.
func (*Hello) Kind() Kind    { return KindHello }
func (*Welcome) Kind() Kind  { return KindWelcome }
func (*Refuse) Kind() Kind   { return KindRefuse }
func (*Failed) Kind() Kind   { return KindFailed }
func (*Serve) Kind() Kind    { return KindServe }
func (*Serving) Kind() Kind  { return KindServing }
func (*Open) Kind() Kind     { return KindOpen }
func (*Deliver) Kind() Kind  { return KindDeliver }
func (*Finish) Kind() Kind   { return KindFinish }
func (*Release) Kind() Kind  { return KindRelease }
func (*End) Kind() Kind      { return KindEnd }
func (*Ended) Kind() Kind    { return KindEnded }
func (*Over) Kind() Kind     { return KindOver }
func (*Leave) Kind() Kind    { return KindLeave }
func (*Drain) Kind() Kind    { return KindDrain }
func (*Segment) Kind() Kind  { return KindSegment }
func (*Forget) Kind() Kind   { return KindForget }
func (*Emit) Kind() Kind     { return KindEmit }
func (*Emitted) Kind() Kind  { return KindEmitted }
func (*Arena) Kind() Kind    { return KindArena }
func (*ArenaAt) Kind() Kind  { return KindArenaAt }
func (*Sealed) Kind() Kind   { return KindSealed }
func (*Reserve) Kind() Kind  { return KindReserve }
func (*Grant) Kind() Kind    { return KindGrant }
func (*Send) Kind() Kind     { return KindSend }
func (*Abort) Kind() Kind    { return KindAbort }
func (*Offer) Kind() Kind    { return KindOffer }
func (*Put) Kind() Kind      { return KindPut }
func (*Returned) Kind() Kind { return KindReturned }

// Kind says which message it is.
func (*Spent) Kind() Kind        { return KindSpent }
func (*Submit) Kind() Kind       { return KindSubmit }
func (*Submitted) Kind() Kind    { return KindSubmitted }
func (*CloseSend) Kind() Kind    { return KindCloseSend }
func (*AbortRequest) Kind() Kind { return KindAbortRequest }
func (*Close) Kind() Kind        { return KindClose }
func (*Call) Kind() Kind         { return KindCall }
func (*Reply) Kind() Kind        { return KindReply }
func (*Bye) Kind() Kind          { return KindBye }
