package wire

// Kind says what a message is.
type Kind uint16

// The kinds of messages, by the names that the protocol gives them. The numbers of messages that
// went, 32 to 40 and 96 to 100, stay unused.
const (
	KindHello   Kind = 1
	KindWelcome Kind = 2
	KindRefuse  Kind = 3
	KindFailed  Kind = 4

	KindServe   Kind = 10
	KindServing Kind = 11
	KindOpen    Kind = 12
	KindDeliver Kind = 13
	KindFinish  Kind = 14
	KindRelease Kind = 15
	KindEnd     Kind = 16
	KindEnded   Kind = 17
	KindOver    Kind = 18
	KindLeave   Kind = 19
	KindDrain   Kind = 20

	KindSegment Kind = 24
	KindForget  Kind = 25

	KindOffer    Kind = 41
	KindPut      Kind = 42
	KindReturned Kind = 43
	KindSpent    Kind = 44

	KindSubmit       Kind = 48
	KindSubmitted    Kind = 49
	KindCloseSend    Kind = 50
	KindAbortRequest Kind = 51
	KindClose        Kind = 52

	KindCall  Kind = 56
	KindReply Kind = 57

	KindBye Kind = 60

	KindLanes     Kind = 64
	KindIntroduce Kind = 65
	KindExpect    Kind = 66
	KindExpecting Kind = 67
	KindDirect    Kind = 68
	KindStreamed  Kind = 69
	KindLent      Kind = 71
	KindClear     Kind = 72
	KindCleared   Kind = 73
	KindReport    Kind = 74
	KindReported  Kind = 75
	KindLane      Kind = 76
	KindAfter     Kind = 77

	KindPlace   Kind = 80
	KindPlaced  Kind = 81
	KindFetch   Kind = 82
	KindFetched Kind = 83
	KindCancel  Kind = 84
	KindCleanup Kind = 85
	KindCleaned Kind = 86

	KindPublish   Kind = 88
	KindPublished Kind = 89
	KindWithdraw  Kind = 90
	KindFind      Kind = 91
	KindFound     Kind = 92
)

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
	name      string
	direction Direction
	make      func() Message

	minDescriptors, maxDescriptors int
}

// kinds is indexed by Kind. An entry without a name is no kind.
var kinds = [...]kindInfo{
	KindHello:   {name: "hello", direction: ToHost, make: func() Message { return new(Hello) }},
	KindWelcome: {name: "welcome", direction: ToClient, make: func() Message { return new(Welcome) }},
	KindRefuse:  {name: "refuse", direction: ToClient, make: func() Message { return new(Refuse) }},
	KindFailed:  {name: "failed", direction: ToClient, make: func() Message { return new(Failed) }},

	KindServe:   {name: "serve", direction: ToHost, make: func() Message { return new(Serve) }},
	KindServing: {name: "serving", direction: ToClient, make: func() Message { return new(Serving) }},
	KindOpen:    {name: "open", direction: ToClient, make: func() Message { return new(Open) }},
	KindDeliver: {name: "deliver", direction: ToClient | ToPeer, make: func() Message { return new(Deliver) }},
	KindFinish:  {name: "finish", direction: ToHost | ToPeer, make: func() Message { return new(Finish) }},
	KindRelease: {name: "release", direction: ToHost | ToPeer, make: func() Message { return new(Release) }},
	KindEnd:     {name: "end", direction: ToClient, make: func() Message { return new(End) }},
	KindEnded:   {name: "ended", direction: ToHost, make: func() Message { return new(Ended) }},
	KindOver:    {name: "over", direction: ToClient, make: func() Message { return new(Over) }},
	KindLeave:   {name: "leave", direction: ToHost, make: func() Message { return new(Leave) }},
	KindDrain:   {name: "drain", direction: ToClient, make: func() Message { return new(Drain) }},

	KindSegment: {name: "segment", direction: ToClient | ToPeer, make: func() Message { return new(Segment) }, minDescriptors: 1, maxDescriptors: 1},
	KindForget:  {name: "forget", direction: ToHost | ToClient | ToPeer, make: func() Message { return new(Forget) }},

	KindOffer:    {name: "offer", direction: ToHost, make: func() Message { return new(Offer) }, minDescriptors: 1, maxDescriptors: 1},
	KindPut:      {name: "put", direction: ToHost, make: func() Message { return new(Put) }},
	KindReturned: {name: "returned", direction: ToClient, make: func() Message { return new(Returned) }},
	KindSpent:    {name: "spent", direction: ToClient, make: func() Message { return new(Spent) }},

	KindSubmit:       {name: "submit", direction: ToHost, make: func() Message { return new(Submit) }},
	KindSubmitted:    {name: "submitted", direction: ToClient, make: func() Message { return new(Submitted) }},
	KindCloseSend:    {name: "close_send", direction: ToHost, make: func() Message { return new(CloseSend) }},
	KindAbortRequest: {name: "abort_request", direction: ToHost, make: func() Message { return new(AbortRequest) }},
	KindClose:        {name: "close", direction: ToHost, make: func() Message { return new(Close) }},

	KindCall:  {name: "call", direction: ToHost, make: func() Message { return new(Call) }},
	KindReply: {name: "reply", direction: ToClient, make: func() Message { return new(Reply) }},

	KindBye: {name: "bye", direction: ToHost | ToClient, make: func() Message { return new(Bye) }},

	KindLanes:     {name: "lanes", direction: ToHost, make: func() Message { return new(Lanes) }},
	KindIntroduce: {name: "introduce", direction: ToClient, make: func() Message { return new(Introduce) }, minDescriptors: 2, maxDescriptors: 2},
	KindExpect:    {name: "expect", direction: ToClient, make: func() Message { return new(Expect) }},
	KindExpecting: {name: "expecting", direction: ToHost, make: func() Message { return new(Expecting) }},
	KindDirect:    {name: "direct", direction: ToClient, make: func() Message { return new(Direct) }},
	KindStreamed:  {name: "streamed", direction: ToHost | ToClient | ToPeer, make: func() Message { return new(Streamed) }},
	KindLent:      {name: "lent", direction: ToHost | ToPeer, make: func() Message { return new(Lent) }},
	KindClear:     {name: "clear", direction: ToHost, make: func() Message { return new(Clear) }},
	KindCleared:   {name: "cleared", direction: ToClient, make: func() Message { return new(Cleared) }},
	KindReport:    {name: "report", direction: ToClient, make: func() Message { return new(Report) }},
	KindLane:      {name: "lane", direction: ToHost | ToClient | ToPeer, make: func() Message { return new(Lane) }, minDescriptors: 1, maxDescriptors: 1},
	KindAfter:     {name: "after", direction: ToHost | ToClient | ToPeer, make: func() Message { return new(After) }},
	KindReported:  {name: "reported", direction: ToHost, make: func() Message { return new(Reported) }},

	KindPlace:   {name: "place", direction: ToHost, make: func() Message { return new(Place) }},
	KindPlaced:  {name: "placed", direction: ToClient, make: func() Message { return new(Placed) }},
	KindFetch:   {name: "fetch", direction: ToHost, make: func() Message { return new(Fetch) }},
	KindFetched: {name: "fetched", direction: ToClient, make: func() Message { return new(Fetched) }},
	KindCancel:  {name: "cancel", direction: ToHost, make: func() Message { return new(Cancel) }},
	KindCleanup: {name: "cleanup", direction: ToHost, make: func() Message { return new(Cleanup) }},
	KindCleaned: {name: "cleaned", direction: ToClient, make: func() Message { return new(Cleaned) }},

	KindPublish:   {name: "publish", direction: ToHost, make: func() Message { return new(Publish) }, minDescriptors: 1, maxDescriptors: 1},
	KindPublished: {name: "published", direction: ToClient, make: func() Message { return new(Published) }},
	KindWithdraw:  {name: "withdraw", direction: ToHost, make: func() Message { return new(Withdraw) }},
	KindFind:      {name: "find", direction: ToHost, make: func() Message { return new(Find) }},
	KindFound:     {name: "found", direction: ToClient, make: func() Message { return new(Found) }, minDescriptors: 2, maxDescriptors: 2},
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
func (k Kind) Descriptors() (least, most int) {
	if info := k.info(); info != nil {
		return info.minDescriptors, info.maxDescriptors
	}
	return 0, 0
}
