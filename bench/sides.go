package bench

import (
	"bytes"
	"context"
	"fmt"
	"time"
)

// Sizes in bytes.
const (
	kib = 1 << 10
	mib = 1 << 20
)

// sizeName writes a size the way names of benchmarks do: 64B, 1MiB.
func sizeName(n int) string {
	switch {
	case n >= mib:
		return fmt.Sprintf("%dMiB", n/mib)
	case n >= kib:
		return fmt.Sprintf("%dKiB", n/kib)
	}
	return fmt.Sprintf("%dB", n)
}

// A pattern is a sequence of payloads that go to another process, and one answer after that has read
// them.
type pattern struct {
	Size   int // of a payload, in bytes
	Every  int // payloads to an answer
	Answer int // its size in bytes
}

func roundTrip(size int) pattern { return pattern{Size: size, Every: 1, Answer: size} }

func oneWay(size int) pattern {
	const acknowledgement = 8 // bytes: an answer only acknowledges the payloads
	return pattern{Size: size, Every: max(min(16*mib/size, 250), 2), Answer: acknowledgement}
}

// A side carries payloads to other processes, by one carrier.
type side interface {
	// run repeats the pattern n times and returns the time that it took.
	run(ctx context.Context, n int) (time.Duration, error)
	close(ctx context.Context) error
}

// A carrierName names a means by which payloads travel, or a process's part in one.
type carrierName string

// The carriers of sides.
const (
	byBus        carrierName = "bus"         // through a bus, to stages in other processes
	bySockets    carrierName = "sockets"     // through stream sockets
	byGRPC       carrierName = "grpc"        // through gRPC
	byNATS       carrierName = "nats"        // through a NATS server
	byPythonPair carrierName = "python-pair" // from Python through a bus to a stage in Python
	byZMQ        carrierName = "zmq"         // between two processes in Python, by ZeroMQ
	byQueue      carrierName = "queue"       // the same by multiprocessing.Queue
	byRing       carrierName = "ring"        // values under keys in the memory of a host of a bus, in Python
	bySegment    carrierName = "segment"     // the same in files, without a host
	byVLLMOmni   carrierName = "vllm-omni"   // the same by vLLM-Omni's SharedMemoryConnector
	byLocalBus   carrierName = "local-bus"   // through the stages of a bus in this process
	byChannels   carrierName = "channels"    // through goroutines in this process
	byActors     carrierName = "actors"      // through actors of protoactor-go in this process
)

// The parts of processes that are not named like their carrier.
const (
	byBusHost     carrierName = "bus-host"     // hosts the bus of byBus, byPythonPair or byRing
	byNode        carrierName = "node"         // serves a stage of byBus
	bySocketRelay carrierName = "socket-relay" // relays payloads of bySockets
	byGRPCRelay   carrierName = "grpc-relay"   // the server of byGRPC that relays
	byNATSServer  carrierName = "nats-server"  // the server of byNATS
	byNothing     carrierName = "nothing"      // computes: see Options.Busy
	byGPU         carrierName = "gpu"          // receives tensors in memory of a GPU, with handles in a lane
	byGPUHolder   carrierName = "gpu holder"   // the same through a bus
)

// A peerSpec describes the work of a process, and its carrier.
type peerSpec struct {
	Carrier   carrierName
	Pattern   pattern
	Flight    int       `json:",omitempty"` // requests in flight, of a message each; 0: all messages are one stream
	Fan       int       `json:",omitempty"` // processes side by side, which each get every payload
	Chain     int       `json:",omitempty"` // processes in a row
	HostCalls bool      `json:",omitempty"` // of a bus: the process that hosts it calls
	Relayed   bool      `json:",omitempty"` // a process between the two relays
	Gauge     gaugeName `json:",omitempty"` // figure of an idle side; empty: the time of a message
	Which     int       `json:",omitempty"` // index of the process in its side
	Socket    string    `json:",omitempty"` // the path of the socket to call at
	Target    string    `json:",omitempty"` // the address of another process
	GPU       *gpuSpec  `json:",omitempty"`
}

// as is the spec for another process of the same side.
func (s peerSpec) as(by carrierName) peerSpec {
	s.Carrier = by
	return s
}

// workers is how many processes do the work of a side.
func (s peerSpec) workers() int { return max(s.Fan, s.Chain, 1) }

// answers is how many processes answer.
func (s peerSpec) answers() int { return max(s.Fan, 1) }

// touched returns a payload in memory that the system has handed out page by page.
func touched(sizeBytes int) []byte {
	b := make([]byte, sizeBytes)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// readAll reads every byte of a payload, and returns an error if it differs from a payload of touched.
func readAll(payload []byte) error {
	const one = 1
	if got, want := bytes.Count(payload, []byte{one}), (len(payload)+256-1-one)/256; got != want {
		return fmt.Errorf("a payload of %d bytes arrived as something else: %d of them are %d, and not %d", len(payload), got, one, want)
	}
	return nil
}
