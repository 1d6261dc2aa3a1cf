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
	case *Lanes:
		m.fields(c)
	case *Introduce:
		m.fields(c)
	case *Expect:
		m.fields(c)
	case *Expecting:
		m.fields(c)
	case *Direct:
		m.fields(c)
	case *Streamed:
		m.fields(c)
	case *Lent:
		m.fields(c)
	case *Clear:
		m.fields(c)
	case *Cleared:
		m.fields(c)
	case *Report:
		m.fields(c)
	case *Reported:
		m.fields(c)
	case *Lane:
		m.fields(c)
	case *After:
		m.fields(c)
	case *Place:
		m.fields(c)
	case *Placed:
		m.fields(c)
	case *Fetch:
		m.fields(c)
	case *Fetched:
		m.fields(c)
	case *Cancel:
		m.fields(c)
	case *Cleanup:
		m.fields(c)
	case *Cleaned:
		m.fields(c)
	case *Publish:
		m.fields(c)
	case *Published:
		m.fields(c)
	case *Withdraw:
		m.fields(c)
	case *Find:
		m.fields(c)
	case *Found:
		m.fields(c)
	default:
		panic("wire: a message that is not a pointer to a struct of this package")
	}
}

// Kind returns [KindHello].
func (*Hello) Kind() Kind { return KindHello }

// Kind returns [KindWelcome].
func (*Welcome) Kind() Kind { return KindWelcome }

// Kind returns [KindRefuse].
func (*Refuse) Kind() Kind { return KindRefuse }

// Kind returns [KindFailed].
func (*Failed) Kind() Kind { return KindFailed }

// Kind returns [KindServe].
func (*Serve) Kind() Kind { return KindServe }

// Kind returns [KindServing].
func (*Serving) Kind() Kind { return KindServing }

// Kind returns [KindOpen].
func (*Open) Kind() Kind { return KindOpen }

// Kind returns [KindDeliver].
func (*Deliver) Kind() Kind { return KindDeliver }

// Kind returns [KindFinish].
func (*Finish) Kind() Kind { return KindFinish }

// Kind returns [KindRelease].
func (*Release) Kind() Kind { return KindRelease }

// Kind returns [KindEnd].
func (*End) Kind() Kind { return KindEnd }

// Kind returns [KindEnded].
func (*Ended) Kind() Kind { return KindEnded }

// Kind returns [KindOver].
func (*Over) Kind() Kind { return KindOver }

// Kind returns [KindLeave].
func (*Leave) Kind() Kind { return KindLeave }

// Kind returns [KindDrain].
func (*Drain) Kind() Kind { return KindDrain }

// Kind returns [KindSegment].
func (*Segment) Kind() Kind { return KindSegment }

// Kind returns [KindForget].
func (*Forget) Kind() Kind { return KindForget }

// Kind returns [KindOffer].
func (*Offer) Kind() Kind { return KindOffer }

// Kind returns [KindPut].
func (*Put) Kind() Kind { return KindPut }

// Kind returns [KindReturned].
func (*Returned) Kind() Kind { return KindReturned }

// Kind returns [KindSpent].
func (*Spent) Kind() Kind { return KindSpent }

// Kind returns [KindSubmit].
func (*Submit) Kind() Kind { return KindSubmit }

// Kind returns [KindSubmitted].
func (*Submitted) Kind() Kind { return KindSubmitted }

// Kind returns [KindCloseSend].
func (*CloseSend) Kind() Kind { return KindCloseSend }

// Kind returns [KindAbortRequest].
func (*AbortRequest) Kind() Kind { return KindAbortRequest }

// Kind returns [KindClose].
func (*Close) Kind() Kind { return KindClose }

// Kind returns [KindCall].
func (*Call) Kind() Kind { return KindCall }

// Kind returns [KindReply].
func (*Reply) Kind() Kind { return KindReply }

// Kind returns [KindBye].
func (*Bye) Kind() Kind { return KindBye }

// Kind returns [KindLanes].
func (*Lanes) Kind() Kind { return KindLanes }

// Kind returns [KindIntroduce].
func (*Introduce) Kind() Kind { return KindIntroduce }

// Kind returns [KindExpect].
func (*Expect) Kind() Kind { return KindExpect }

// Kind returns [KindExpecting].
func (*Expecting) Kind() Kind { return KindExpecting }

// Kind returns [KindDirect].
func (*Direct) Kind() Kind { return KindDirect }

// Kind returns [KindStreamed].
func (*Streamed) Kind() Kind { return KindStreamed }

// Kind returns [KindLent].
func (*Lent) Kind() Kind { return KindLent }

// Kind returns [KindClear].
func (*Clear) Kind() Kind { return KindClear }

// Kind returns [KindCleared].
func (*Cleared) Kind() Kind { return KindCleared }

// Kind returns [KindReport].
func (*Report) Kind() Kind { return KindReport }

// Kind returns [KindReported].
func (*Reported) Kind() Kind { return KindReported }

// Kind returns [KindLane].
func (*Lane) Kind() Kind { return KindLane }

// Kind returns [KindAfter].
func (*After) Kind() Kind { return KindAfter }

// Kind returns [KindPlace].
func (*Place) Kind() Kind { return KindPlace }

// Kind returns [KindPlaced].
func (*Placed) Kind() Kind { return KindPlaced }

// Kind returns [KindFetch].
func (*Fetch) Kind() Kind { return KindFetch }

// Kind returns [KindFetched].
func (*Fetched) Kind() Kind { return KindFetched }

// Kind returns [KindCancel].
func (*Cancel) Kind() Kind { return KindCancel }

// Kind returns [KindCleanup].
func (*Cleanup) Kind() Kind { return KindCleanup }

// Kind returns [KindCleaned].
func (*Cleaned) Kind() Kind { return KindCleaned }

// Kind returns [KindPublish].
func (*Publish) Kind() Kind { return KindPublish }

// Kind returns [KindPublished].
func (*Published) Kind() Kind { return KindPublished }

// Kind returns [KindWithdraw].
func (*Withdraw) Kind() Kind { return KindWithdraw }

// Kind returns [KindFind].
func (*Find) Kind() Kind { return KindFind }

// Kind returns [KindFound].
func (*Found) Kind() Kind { return KindFound }
