package lockorder

type (
	right struct{} // element of the class of a [Right]
	lock  struct{} // element of the class of a [Mutex] or [RWMutex]
)

// The classes in their order. The length of a class is its rank: a goroutine takes a lock while
// it holds locks of lesser ranks, or none. Classes of one rank are never held together. A comment
// begins with the field that has the class.
type (
	// Rights.

	BusStop         [10]right // bus.Bus.stopMu: one stop at a time
	ReceiverReading [20]right // internal/peer.Receiver.reading: which goroutine handles what comes by a connection
	ReportsTurn     [30]right // bus/host.reports.turn: the goroutine that asks one client of what goes past the host
	StageTurn       [40]right // bus.turn.mu: the handler of one replica
	FlowAsleep      [50]right // bus.flow.asleep: one sleeper at a time in a flow
	LinkCalling     [60]right // bus/node.link.calling: opening the bus that carries what a node submits, and submitting

	// Locks of the table of stages and processes: they come before those of a bus.

	NodeDirectory   [100]lock // bus/node.nodeDirectory.mu: what a node publishes
	ExchangePlacing [101]lock // bus/node.nodeExchange.placing: one Close of an end, behind what is being placed
	Node            [110]lock // bus/node.Node.mu: the link, and what is served
	Server          [111]lock // bus/host.Server.mu: the sessions
	RemoteStage     [120]lock // bus.Station.mu: replicas, works and postings of one stage
	Begun           [130]lock // bus/node.begun.mu: a node's stages, tasks and requests
	Upstream        [140]lock // bus/node.upstream.mu: how a request that lives at the host stands there
	NodeTask        [141]lock // bus/node.nodeTask.mu: what a task has, and whether it is over
	Arrivals        [150]lock // bus/node.arrivals.mu: streams that come

	// Locks of a bus.

	Bus          [200]lock // bus.Bus.mu: requests alive, the end of the bus
	Edge         [210]lock // bus.edge.mu: counts of requests that are gone
	Outlet       [220]lock // bus.outlet.mu: the producer's side of the flows of one request at one stage
	FlowQueue    [230]lock // bus.flow.qmu: the queue of a flow
	Request      [240]lock // bus.Request.mu: the end, the timer, and the place in the order of slots
	Pool         [250]lock // internal/pool.Pool.mu: free slots, or places, and the requests that wait for them
	Results      [260]lock // bus.results.mu: results not received
	TaskHeld     [260]lock // bus.Task.heldMu: deliveries that are held
	OutletRoom   [260]lock // bus.outlet.roomMu: emissions that wait for room
	Latency      [260]lock // bus.latency.mu: a histogram
	TensorFigure [260]lock // bus.TensorFigures.mu: what processes have told of their tensors
	Hub          [260]lock // bus/tensorqueue.hub.mu: the queue, at its owner
	Tally        [260]lock // bus/tensorqueue.tally.mu: what is under way

	// Locks of sessions and nodes.

	Source       [300]lock // bus/host.source.mu: what waits behind an emission
	Circle       [310]lock // bus/host.circle.mu: which processes were introduced to which
	Routes       [310]lock // bus/node.routes.mu: where edges lead
	Exchange     [320]lock // internal/exchange.Exchange.mu: ends of the exchange in the host's process
	Directory    [330]lock // internal/directory.Directory.mu: names, and the processes that published them
	Account      [340]lock // internal/ledger.Account.mu: what another process has here
	Pair         [350]lock // bus/node.pair.mu: how the two nodes are connected
	Questions    [360]lock // bus/host.openQuestions.mu: questions of a client that are being answered
	SourceSet    [360]lock // bus/host.sourceSet.mu: what a client emits for
	Seats        [360]lock // bus/host.seats.mu: the replicas that a client is
	Past         [360]lock // bus/host.past.mu: what goes from and to a client past the host
	Movement     [360]lock // bus/host.movement.mu: whether a client that has work moves
	Exchanging   [360]lock // bus/host.exchanging.mu: what a client has of the exchange
	Reports      [360]lock // bus/host.reports.mu: the question of what goes past the host
	Asked        [360]lock // bus/node.asked.mu: what a node has asked its host
	Peers        [360]lock // bus/node.peers.mu: the nodes that a node was introduced to
	Parting      [361]lock // bus/node.parting.mu: how a link ends
	ToldFigures  [362]lock // bus/node.toldFigures.mu: what a host was told of the lane
	PacketBatch  [370]lock // internal/peer.Turn.mu: the packets that are being handled
	Sender       [380]lock // internal/peer.Sender.mu: what is being sent
	Watches      [390]lock // internal/directory.Watches.mu: watches of processes
	Process      [391]lock // internal/process.Process.mu: what is called when a process dies
	ExchangeRoom [400]lock // internal/exchange.Room.mu: the memory of what a process puts
	RingTable    [410]lock // connector/ring.Table.mu: what lies under which key
	RingRoom     [420]lock // connector/ring.Room.mu: the store, once its writer has stopped

	// Locks of actors and stores: they come after all others.

	Supervisor [500]lock // actors.supervisor.mu: stages that have not ended
	Producer   [510]lock // actors.Producer.mu: unused reservations
	Writer     [520]lock // actors.Writer.mu: which producers have extents
	Mailbox    [530]lock // actors.Mailbox.mu: the queue, and the senders that wait for room in it
	Dispatcher [540]lock // actors.Dispatcher.mu: parked workers
	LargeTable [550]lock // shmstore.largeTable.mu: which segment a large object has
	Segment    [560]lock // shmstore.Segment.mu: a descriptor
	Limits     [560]lock // shmstore.limits.mu: the limits of the process, as they were read last
	LeaseBook  [560]lock // shmstore.leaseBook.mu: open leases, in builds with -race or the tag invariants
	Ranges     [560]lock // internal/ledger.ranges.mu: where the live payloads of a client lie
	Unmapper   [560]lock // internal/ledger.unmapper.mu: what is to be given back to the system
)
