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

	ReceiverReading [10]right // internal/peer.Receiver.reading: which goroutine handles the messages of a connection
	HandlerLock     [30]right // bus.handlerLock.mu: the handler of one replica; an emission that waits gives it up
	FlowSleep       [40]right // bus.flow.sleepRight: one sleeper at a time in a flow
	LinkCalling     [50]right // bus/node.link.callerMu: opening the bus for a node's requests, and submitting
	BusStop         [60]right // bus.Bus.stopMu: one stop at a time
	KeyedWriter     [70]right // shmstore/keyed.Store.writer: the store's writer

	// Hosts and nodes.

	NodeDirectory   [110]lock // bus/node.nodeDirectory.mu: the names that a node publishes
	ExchangePlacing [120]lock // bus/node.nodeExchange.placing: one Close of an end, after the puts in progress
	Node            [130]lock // bus/node.Node.mu: the link, and the stages that are served
	Server          [140]lock // bus/host.Server.mu: the sessions
	RemoteStage     [150]lock // bus.RemoteStage.mu: replicas, works and tasks of one stage
	LinkWork        [160]lock // bus/node.linkWork.mu: a node's stages, tasks and requests
	Resequencer     [170]lock // bus/node.resequencer.mu: the order of incoming streams

	// A bus.

	Bus       [210]lock // bus.Bus.mu: requests alive, the end of the bus
	Outputs   [220]lock // bus.outputs.mu: the producer's side of the flows of one request at one stage
	FlowQueue [230]lock // bus.flow.qmu: the queue of a flow
	Request   [240]lock // bus.Request.mu: the end, and the timer

	// The state of other processes, and the messages to them.

	Introduced  [310]lock // bus/host.introductions.mu: which processes were introduced to which
	Routes      [320]lock // bus/node.routes.mu: where edges lead
	Exchange    [330]lock // internal/exchange.Exchange.mu: endpoints of the exchange in the host's process
	SentFigures [335]lock // bus/node.sentFigures.mu: the figures of the lane that a host was sent
	Directory   [340]lock // internal/directory.Directory.mu: names, and the processes that published them
	Account     [350]lock // internal/accounts.Account.mu: the payloads that another process has, and the announced memory
	PacketBatch [360]lock // internal/peer.PacketBatch.mu: the packets that are being handled
	Sender      [370]lock // internal/peer.Sender.mu: the queue of a connection

	// Memory.

	ValueStore [410]lock // internal/exchange.ValueStore.mu: the memory for the values that a process puts
	RingStore  [420]lock // connector/ring.Store.mu: the store, once its writer has stopped
	Producer   [430]lock // actors.Producer.mu: unused reservations

	// Leaves: no lock is taken while one of them is held.

	Pool         [900]lock // internal/pool.Pool.mu: free permits, and the requests that wait for them
	Admission    [900]lock // bus.admission.mu: slots of stages, and the requests that wait for them
	Results      [900]lock // bus.results.mu: results not received
	TaskHeld     [900]lock // bus.Task.heldMu: deliveries that are held
	OutputsSpace [900]lock // bus.outputs.spaceMu: emissions that wait for space
	Latency      [900]lock // bus.latency.mu: a histogram
	TensorFigure [900]lock // bus.TensorFigures.mu: the tensor figures of processes
	Hub          [900]lock // bus/tensorqueue.hub.mu: the queue, at its owner
	PendingCount [900]lock // bus/tensorqueue.pendingCount.mu: how many operations are unfinished

	Source        [900]lock // bus/host.source.mu: messages that wait behind an emission; whether a request has begun, or is withdrawn
	SubmitQueue   [900]lock // bus/host.submitQueue.mu: the requests of a client that wait for permits
	Grants        [900]lock // bus/host.grants.mu: the permits that were granted
	Questions     [900]lock // bus/host.openQuestions.mu: questions of a client that are being answered
	SourceSet     [900]lock // bus/host.sourceSet.mu: the tasks that a client emits for
	Replicas      [900]lock // bus/host.replicas.mu: the replicas of a client
	DirectPaths   [900]lock // bus/host.directPaths.mu: the direct paths from and to a client
	StallDetector [900]lock // bus/host.stallDetector.mu: whether a client with work makes progress
	ExchangeState [900]lock // bus/host.exchangeState.mu: the values of a client in the exchange
	Reports       [900]lock // bus/host.reports.mu: the last report of a client, and its lease

	RemoteRequest [900]lock // bus/node.remoteRequest.mu: the state of a request at the host
	NodeTask      [900]lock // bus/node.nodeTask.mu: the deliveries of a task, and whether it has ended
	PeerLink      [900]lock // bus/node.peerLink.mu: how the two nodes are connected
	NodeQuestions [900]lock // bus/node.questions.mu: the questions of a node to its host
	Peers         [900]lock // bus/node.peers.mu: the nodes that a node was introduced to
	LinkState     [900]lock // bus/node.linkState.mu: how a link ends
	ReportLease   [900]lock // bus/node.reportLease.mu: for how long a link reports

	Watches   [900]lock // internal/directory.Watches.mu: watches of processes
	Process   [900]lock // internal/process.Process.mu: the functions called when a process dies
	RingTable [900]lock // connector/ring.Table.mu: the values under each key
	Ranges    [900]lock // internal/accounts.ranges.mu: where the live payloads of a client lie
	Unmapper  [900]lock // internal/accounts.unmapper.mu: segments to be given back to the system

	Supervisor [900]lock // actors.supervisor.mu: stages that have not ended
	Writer     [900]lock // actors.Writer.mu: the producers that have extents
	Mailbox    [900]lock // actors.Mailbox.mu: the queue, and the senders that wait for space in it
	Dispatcher [900]lock // actors.Dispatcher.mu: parked workers
	LargeTable [900]lock // shmstore.largeTable.mu: the segments of large objects
	Segment    [900]lock // shmstore.Segment.mu: a descriptor
	Limits     [900]lock // shmstore.limits.mu: the limits of the process, as they were read last
	LeaseBook  [900]lock // shmstore.leaseBook.mu: open leases, in builds with -race or the tag invariants
)
