package lockorder

// The classes of locks in their order. The length of a class is its rank: a goroutine takes a
// lock while it holds locks of lesser ranks, or none. Classes of one rank are never held together.
// A comment begins with the field that has the class.

type (
	right struct{} // element of the class of a [Right]
	lock  struct{} // element of the class of a [Mutex] or [RWMutex]
)

type (
	// Rights.

	ReceiverReading [10]right // internal/peer.Receiver.reading: which goroutine handles what comes by a connection
	StageTurn       [30]right // bus.turn.mu: the handler of one replica; an emission that waits gives it up
	FlowAsleep      [40]right // bus.flow.asleep: one sleeper at a time in a flow
	LinkCalling     [50]right // bus/node.link.calling: opening the bus that carries what a node submits, and submitting
	BusStop         [60]right // bus.Bus.stopMu: one stop at a time
	KeyedWriter     [70]right // shmstore/keyed.Store.writer: the store's writer

	// What hosts and nodes serve.

	NodeDirectory   [110]lock // bus/node.nodeDirectory.mu: what a node publishes
	ExchangePlacing [120]lock // bus/node.nodeExchange.placing: one Close of an end, behind what is being placed
	Node            [130]lock // bus/node.Node.mu: the link, and what is served
	Server          [140]lock // bus/host.Server.mu: the sessions
	RemoteStage     [150]lock // bus.RemoteStage.mu: replicas, works and postings of one stage
	Begun           [160]lock // bus/node.begun.mu: a node's stages, tasks and requests
	Arrivals        [170]lock // bus/node.arrivals.mu: streams that come

	// A bus.

	Bus       [210]lock // bus.Bus.mu: requests alive, the end of the bus
	Outlet    [220]lock // bus.outlet.mu: the producer's side of the flows of one request at one stage
	FlowQueue [230]lock // bus.flow.qmu: the queue of a flow
	Request   [240]lock // bus.Request.mu: the end, and the timer

	// What other processes have and are sent.

	Introduced  [310]lock // bus/host.introductions.mu: which processes were introduced to which
	Routes      [320]lock // bus/node.routes.mu: where edges lead
	Exchange    [330]lock // internal/exchange.Exchange.mu: ends of the exchange in the host's process
	ToldFigures [335]lock // bus/node.toldFigures.mu: what a host was told of the lane
	Directory   [340]lock // internal/directory.Directory.mu: names, and the processes that published them
	Account     [350]lock // internal/accounts.Account.mu: what another process has here, and which memory it was told of
	PacketBatch [360]lock // internal/peer.Turn.mu: the packets that are being handled
	Sender      [370]lock // internal/peer.Sender.mu: what is being sent

	// Memory.

	ExchangeRoom [410]lock // internal/exchange.Room.mu: the memory of what a process puts
	RingStore    [420]lock // connector/ring.Store.mu: the store, once its writer has stopped
	Producer     [430]lock // actors.Producer.mu: unused reservations

	// Leaves: no lock is taken while one of them is held.

	Pool         [900]lock // internal/pool.Pool.mu: free places, and the requests that wait for them
	Admission    [900]lock // bus.admission.mu: slots of stages, and the requests that wait for them
	Results      [900]lock // bus.results.mu: results not received
	TaskHeld     [900]lock // bus.Task.heldMu: deliveries that are held
	OutletRoom   [900]lock // bus.outlet.roomMu: emissions that wait for room
	Latency      [900]lock // bus.latency.mu: a histogram
	TensorFigure [900]lock // bus.TensorFigures.mu: what processes have told of their tensors
	Hub          [900]lock // bus/tensorqueue.hub.mu: the queue, at its owner
	Tally        [900]lock // bus/tensorqueue.tally.mu: how much is not finished yet

	Source     [900]lock // bus/host.source.mu: what waits behind an emission; whether a request has begun, or is withdrawn
	Line       [900]lock // bus/host.line.mu: the requests of a client that wait for their places
	Grants     [900]lock // bus/host.grants.mu: which places were granted
	Questions  [900]lock // bus/host.openQuestions.mu: questions of a client that are being answered
	SourceSet  [900]lock // bus/host.sourceSet.mu: what a client emits for
	Seats      [900]lock // bus/host.seats.mu: the replicas that a client is
	Past       [900]lock // bus/host.past.mu: what goes from and to a client past the host
	Movement   [900]lock // bus/host.movement.mu: whether a client that has work moves
	Exchanging [900]lock // bus/host.exchanging.mu: what a client has of the exchange
	Reports    [900]lock // bus/host.reports.mu: the last report of a client, and its lease

	Upstream [900]lock // bus/node.upstream.mu: how a request that lives at the host stands there
	NodeTask [900]lock // bus/node.nodeTask.mu: what a task has, and whether it is over
	Pair     [900]lock // bus/node.pair.mu: how the two nodes are connected
	Asked    [900]lock // bus/node.asked.mu: what a node has asked its host
	Peers    [900]lock // bus/node.peers.mu: the nodes that a node was introduced to
	Parting  [900]lock // bus/node.parting.mu: how a link ends
	Pushing  [900]lock // bus/node.pushing.mu: for how long a link reports

	Watches   [900]lock // internal/directory.Watches.mu: watches of processes
	Process   [900]lock // internal/process.Process.mu: what is called when a process dies
	RingTable [900]lock // connector/ring.Table.mu: what lies under which key
	Ranges    [900]lock // internal/accounts.ranges.mu: where the live payloads of a client lie
	Unmapper  [900]lock // internal/accounts.unmapper.mu: what is to be given back to the system

	Supervisor [900]lock // actors.supervisor.mu: stages that have not ended
	Writer     [900]lock // actors.Writer.mu: which producers have extents
	Mailbox    [900]lock // actors.Mailbox.mu: the queue, and the senders that wait for room in it
	Dispatcher [900]lock // actors.Dispatcher.mu: parked workers
	LargeTable [900]lock // shmstore.largeTable.mu: which segment a large object has
	Segment    [900]lock // shmstore.Segment.mu: a descriptor
	Limits     [900]lock // shmstore.limits.mu: the limits of the process, as they were read last
	LeaseBook  [900]lock // shmstore.leaseBook.mu: open leases, in builds with -race or the tag invariants
)
