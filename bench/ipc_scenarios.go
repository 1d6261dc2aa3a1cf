package bench

// A carrier is how payloads get to another process.
type carrierName string

const (
	byLane    carrierName = "lane"       // in the frames of a lane
	byHandle  carrierName = "handle"     // in a store, with handles in a lane
	byOffer   carrierName = "offer"      // the same, but nothing is copied, and both ends are read
	byPages   carrierName = "pages"      // the same, but every page is read
	byFloor   carrierName = "floor"      // in memory that both have, without any protocol
	byStream  carrierName = "unix"       // through a socket
	byPackets carrierName = "unixpacket" // through one that keeps message bounds
	byShmipc  carrierName = "shmipc"     // by the module shmipc-go
	byNode    carrierName = "node"       // through a bus, from its host to a stage in another process
	byDirect  carrierName = "direct"     // the same, from a node: past the host
	byPython  carrierName = "python"     // through a bus, to a stage in Python
	byForward carrierName = "forward"    // the same, and the stage copies nothing
	byQueue   carrierName = "queue"      // by Python's multiprocessing.Queue

	// Those of the table of peers: see row. Each may have several processes.
	byBus         carrierName = "bus"          // through a bus, with a host of its own
	bySockets     carrierName = "sockets"      // through stream sockets
	byGRPC        carrierName = "grpc"         // through gRPC
	byNATS        carrierName = "nats"         // through a NATS server
	byPythonPair  carrierName = "python-pair"  // from Python through a bus to a stage in Python
	byZMQ         carrierName = "zmq"          // between two processes in Python, by ZeroMQ
	byRing        carrierName = "ring"         // values under keys in the memory of a host of a bus, in Python
	bySegment     carrierName = "segment"      // the same in files, without a host
	byVLLMOmni    carrierName = "vllm-omni"    // the same by vLLM-Omni's SharedMemoryConnector
	byLocalBus    carrierName = "local-bus"    // through the stages of a bus in this process
	byChannels    carrierName = "channels"     // through goroutines in this process
	byActors      carrierName = "actors"       // through actors of protoactor-go in this process
	byBusHost     carrierName = "bus-host"     // the process of byBus that hosts
	bySocketRelay carrierName = "socket-relay" // the process of bySockets that passes on
	byGRPCRelay   carrierName = "grpc-relay"   // the server of byGRPC that passes on
	byNATSServer  carrierName = "nats-server"  // the server of byNATS

	byNothing carrierName = "nothing" // it carries nothing, and computes: see Options.Busy
)

// waitings are the ways in which a side of a lane waits: their names.
var waitings = []string{"parked", "ladder", "spinning"}

// The targets: how many times as fast as a stream socket a round trip is. At
// 1 MiB a payload is copied once and read where it lies; through a socket it is
// copied twice.
var roundTripTargets = map[int]map[string]float64{
	64:  {"parked": 1.3, "ladder": 4, "spinning": 20},
	mib: {"parked": 2, "ladder": 2.5, "spinning": 2.5},
}

const (
	// handOverCost is what handing over 64 MiB may cost beside 64 bytes.
	handOverCost = 1.1
	// queueSpeed is how many times as fast as Python's queue a stage in Python
	// is.
	queueSpeed = 10
)

// laneBytes is the largest payload that is measured in frames of a lane. It is
// what a bus sends inside its deliveries.
const laneBytes = 512

// ipcScenarios lists what is measured between processes, in the order in which
// it is run and shown.
func ipcScenarios() []scenario {
	var all []scenario
	for _, size := range ipcSizes {
		all = append(all, socketRace("ipc/round-trip/size="+sizeName(size), roundTrip(size), roundTripTargets[size]))
	}
	for _, size := range ipcSizes {
		all = append(all, socketRace("ipc/one-way/size="+sizeName(size), oneWay(size), nil))
	}
	return append(all,
		// Short slices: what disturbs a longer one leaves some of these alone.
		handOverRace("ends", byOffer, 40, ratioUpTo(handOverCost)),
		handOverRace("pages", byPages, 16, target{}),
		pythonRace(),
	)
}

// socketRace compares everything with a stream socket: the lanes and the bus of
// this module, the other kind of socket, and another module; where there are
// targets, also what two processes can do at the most.
func socketRace(name string, p pattern, targets map[string]float64) scenario {
	const socket = "socket"
	var all []contender
	add := func(name string, by carrierName, waiting string) {
		c := contender{name: name, against: socket, spec: peerSpec{Carrier: by, Waiting: waiting, Pattern: p}}
		if speed, ok := targets[waiting]; ok && by != byFloor {
			c.target = speedOf(speed)
		}
		all = append(all, c)
	}
	if p.Size <= laneBytes {
		for _, w := range waitings {
			add("lane-"+w, byLane, w)
		}
	}
	for _, w := range waitings {
		add("handle-"+w, byHandle, w)
	}
	if targets != nil { // then also what can be had at all
		for _, w := range []string{"parked", "spinning"} {
			add("floor-"+w, byFloor, w)
		}
	}
	add("bus", byDirect, "")
	add("bus-host", byNode, "")
	add("packets", byPackets, "")
	if !raceDetector {
		add("shmipc", byShmipc, "")
	}
	return raceScenario(name, p, append(all, contender{name: socket, spec: peerSpec{Carrier: byStream, Pattern: p}})...)
}

// handOverRace hands over large payloads that are in the store already, and
// compares that with small ones.
func handOverRace(name string, by carrierName, runs int, t target) scenario {
	large := pattern{Size: 64 * mib, Every: 1, Runs: runs}
	small := large
	small.Size = 64
	var all []contender
	for _, w := range waitings {
		base := "small-" + w
		all = append(all,
			contender{name: w, against: base, target: t, spec: peerSpec{Carrier: by, Waiting: w, Pattern: large}},
			contender{name: base, spec: peerSpec{Carrier: by, Waiting: w, Pattern: small}},
		)
	}
	s := raceScenario("ipc/hand-over/size="+sizeName(large.Size)+"/"+name, large, all...)
	s.trials = 4
	return s
}

// pythonRace sends payloads through a stage in Python and back, and compares
// that with Python's own queues. The stage writes other payloads, or passes on
// what it gets, as Python's queues do.
func pythonRace() scenario {
	const queue = "queue"
	p := roundTrip(mib)
	return raceScenario("ipc/python/size="+sizeName(p.Size), p,
		contender{name: "copy", against: queue, target: speedOf(queueSpeed), spec: peerSpec{Carrier: byPython, Pattern: p}},
		contender{name: "forward", against: queue, target: speedOf(queueSpeed), spec: peerSpec{Carrier: byForward, Pattern: p}},
		contender{name: queue, spec: peerSpec{Carrier: byQueue, Pattern: p}},
	)
}
