package layers

import "strings"

// promise is what a package declares for programs that embed the library, or for the tests of
// other packages. What it needs is reached through it and has no line.
type promise struct {
	path, names string
	reason      string
}

var promises = []promise{
	{
		path:   "actors",
		names:  "Lookout.Looks",
		reason: "tests of packages bus and bus/node count the looks",
	},
	{
		path:   "bus",
		names:  "Bus.Submit Bus.TrySubmit Request.Results Request.Wait",
		reason: "a program submits requests to its own bus, whose values never become bytes for a host",
	},
	{
		path:   "bus",
		names:  "Expand Join2 Key Result Stage To",
		reason: "a program writes stages as Go functions of its own types, and says to whom and under what key they emit",
	},
	{
		path:   "bus",
		names:  "Emitter.EmitTensor Emitter.Reserve",
		reason: "a stage fills its payload, or a tensor, where the next one reads it",
	},
	{
		path:   "bus",
		names:  "WithTrace",
		reason: "a program passes on the trace of the call that its request answers",
	},
	{
		path:   "bus",
		names:  "Task.Replica",
		reason: "replicas of a stage have something of their own each, such as a GPU",
	},
	{
		path:   "bus",
		names:  "ParseTensorTransport",
		reason: "a program reads a transport from its flags, as examples/gpu does",
	},
	{
		path:   "bus",
		names:  "Bus.Running",
		reason: "a program finds the handlers of its own bus that do not return",
	},
	{
		path:   "bus",
		names:  "Bus.Exchange",
		reason: "a program in the process of the host opens connectors that other processes reach",
	},
	{
		path:   "bus/node",
		names:  "Node.Serve",
		reason: "a process in Go serves stages: those of omnibus run are programs",
	},
	{
		path:   "bus/node",
		names:  "Node.Submit Node.TrySubmit",
		reason: "a process in Go submits requests to the bus of its host",
	},
	{
		path:   "bus/node",
		names:  "Node.Epoch",
		reason: "a process tells a host that came anew from the one it was attached to",
	},
	{
		path:   "bus/node",
		names:  "Node.TensorStats",
		reason: "a process reports how tensors have come to it: the host sees what is sent alone",
	},
	{
		path:   "bus/tensorqueue",
		names:  "Item.Inputs Item.Message Join Queue.Drain Queue.Empty Queue.Get Queue.Put",
		reason: "a program in Go uses a queue that a command or a Python process serves: see docs/tensor-queue.md",
	},
	{
		path:   "codec",
		names:  "BFloat16.Float32 Float8E4M3FN.Float32 Float8E5M2.Float32 ToBFloat16 ToFloat16",
		reason: "a stage computes with elements for which Go has no type",
	},
	{
		path:   "codec",
		names:  "FromSlice View",
		reason: "a stage has a Go slice where others have a tensor, without a copy",
	},
	{
		path:   "codec",
		names:  "Tensor.Clone",
		reason: "a stage keeps a tensor longer than its payload, or aligns it",
	},
	{
		path:   "codec",
		names:  "Decode",
		reason: "a program gets a value out of a payload that it took from a store or a connector",
	},
	{
		path:   "codec/kv",
		names:  "Serializer",
		reason: "a stage in Go exchanges KV caches with vLLM-Omni's over a connector, in the frames that those put there",
	},
	{
		path:   "codec/proto",
		names:  "Serializer",
		reason: "a program whose values are Protobuf messages gives it to its bus",
	},
	{
		path:   "config",
		names:  "Pipeline.Build",
		reason: "a program gives stages of a file their work in Go",
	},
	{
		path:   "config",
		names:  "Pipeline.Plan",
		reason: "a stage that has no bus opens the connectors that the file gives its edges",
	},
	{
		path:   "connector",
		names:  "Connector.Peek",
		reason: "a program leaves a value for others, such as a voice that many requests use",
	},
	{
		path:   "connector",
		names:  "Settings.Flag",
		reason: "a transport of a program reads a setting that is on or off",
	},
	{
		path:   "connector/flow",
		names:  "Plan.Open Stage.Cleanup Stage.Receive Stage.Send",
		reason: "a stage that has no bus hands values over with stages of vLLM-Omni: see docs/connectors",
	},
	{
		path:   "connector/flow",
		names:  "NewMessage",
		reason: "those stages take a value in this shape alone",
	},
	{
		path:   "connector/ring",
		names:  "Ring.Check Ring.Stats",
		reason: "a program that closes its ring sees what was not got, and that the store is whole",
	},
	{
		path:   "cudaipc/cuda",
		names:  "byPointer",
		reason: "the build for arm64 calls it",
	},
	{
		path:   "cudaipc/lane",
		names:  "Lane.Device",
		reason: "a program allocates on the GPU that its tensors come to, and makes streams there",
	},
	{
		path:   "cudaipc/lane",
		names:  "Message.Err Message.OnDevice Message.Wait",
		reason: "a stage asks whether tensors are on a GPU and whole, and waits for them without a stream",
	},
	{
		path:   "cudaipc/lane",
		names:  "Outgoing.Mode Sender.Why",
		reason: "a program that does without a bus learns by which way tensors go, and why by no other",
	},
	{
		path:   "internal/directory",
		names:  "Directory.Bound Directory.Len",
		reason: "tests of packages bus/host and bus/node make the directory small, and count its names",
	},
	{
		path:   "internal/exchange",
		names:  "Room.Memory",
		reason: "tests of package bus/node look where the values of a node lie",
	},
	{
		path:   "internal/pool",
		names:  "Pool.Free",
		reason: "tests of package bus/host see that a place comes back",
	},
	{
		path:   "internal/peer",
		names:  "Conn.Receive PacketsSent Pair",
		reason: "tests of packages bus/host and bus/node make pairs of connections and count packets; its own read one packet at a time",
	},
	{
		path:   "internal/wire",
		names:  "Kind.Descriptors Kind.Direction",
		reason: "tests compare the table of messages with docs/protocol.md and the Python client",
	},
	{
		path:   "messages",
		names:  "Handle.MarshalBinary Handle.UnmarshalBinary",
		reason: "an owner sends handles to the processes that it has admitted as readers",
	},
	{
		path: "shmstore/keyed",
		names: "Create Dial Open Store.Listen Store.Put Store.GetCached Store.Touch Store.IsCached Store.Delete Store.Clear Store.FreeUnused Store.Stats " +
			"Store.Admit Store.RemoveReader Store.Check Store.Close Reader.Get Reader.Drop Reader.Close Value.Bytes Value.Decode Value.Release",
		reason: "a program keeps a cache of values that many processes read, with a bus or without one",
	},
	{
		path:   "shmstore",
		names:  "Attach Reader.AddSegment Reader.OnRoom Store.Admit",
		reason: "a store's reader in another process, which takes leases itself: processes of a bus read by their host's account",
	},
	{
		path:   "shmstore",
		names:  "Reader.Arena",
		reason: "such a reader registers the arena with its GPU, as package bench does",
	},
	{
		path:   "shmstore",
		names:  "Reader.ID Store.DeclareReader",
		reason: "a program charges each consumer for itself, and removes it with what it holds; a bus has one reader",
	},
	{
		path:   "shmstore",
		names:  "Store.Put Store.Reserve",
		reason: "a program without a writer actor puts one object at a time",
	},
	{
		path:   "shmstore",
		names:  "Reader.Pin",
		reason: "a consumer reads an object by a handle that it has remembered, and was not charged for",
	},
	{
		path:   "shmstore",
		names:  "Store.FreeUnused",
		reason: "a program that goes idle gives memory back at once",
	},
}

// errorPromises are the exported errors that only programs outside the module distinguish.
var errorPromises = []promise{
	{
		path:   "bus",
		names:  "ErrWindowFull",
		reason: "a program submits again later, or elsewhere",
	},
	{
		path:   "bus",
		names:  "ErrAfterEnd ErrNoEdge ErrPayload",
		reason: "a stage has emitted what it may not, which ends its request; a node is told by codes of their own",
	},
	{
		path:   "bus",
		names:  "ErrMissing ErrPanic",
		reason: "a program submits a request again that failed by chance",
	},
	{
		path:   "bus",
		names:  "ErrJoinRoom ErrSequence",
		reason: "a program does not submit a request again whose streams do not fit the pipeline",
	},
	{
		path:   "bus/node",
		names:  "ErrUntrusted",
		reason: "a program that waits for its host gives up at a socket that another user may have made",
	},
	{
		path:   "codec",
		names:  "ErrAlignment ErrByteOrder",
		reason: "a stage that cannot view a tensor clones it, or reads its elements one by one",
	},
	{
		path:   "codec",
		names:  "ErrUnknown",
		reason: "a consumer registers the serializer of a payload, which is not damaged",
	},
	{
		path:   "config",
		names:  "ErrBuild ErrNoTransport",
		reason: "a program tells a file that is wrong from one that this build, or this process, cannot run; omnibus takes their texts off",
	},
	{
		path:   "config",
		names:  "Problem",
		reason: "a program shows each problem of a file at its line, as omnibus validate does",
	},
	{
		path:   "connector",
		names:  "ErrDecode ErrEncode",
		reason: "a program does not try again where its own value or type is wrong",
	},
	{
		path:   "cudaipc/lane",
		names:  "ErrClosed ErrForeignDevice",
		reason: "a program has tensors sent by the host where a GPU is not visible, and ends where the lane has",
	},
	{
		path:   "internal/host",
		names:  "StageError",
		reason: "a test of the host asks it which stage did not get ready",
	},
	{
		path:   "internal/peer",
		names:  "ErrUnsupported",
		reason: "its test on other systems asks for it",
	},
	{
		path:   "shmstore/keyed",
		names:  "ErrInUse ErrKey ErrOwnerGone",
		reason: "a program chooses another path or key, and dials a new owner",
	},
	{
		path:   "shmstore",
		names:  "ErrOwnerStalled",
		reason: "a reader in another process looks whether the owner is alive",
	},
	{
		path:   "shmstore/lane",
		names:  "ErrPeer",
		reason: "a program that uses a lane without a bus ends a peer that has broken its rules",
	},
}

// forTests are packages for tests and examples, and the tests of other programs: what they
// declare needs no caller, and what they call is not called by the product.
var forTests = []string{
	"bench", "examples", "codec/internal/codectest", "connector/connectortest", "cudaipc/drivertest", "cudaipc/emul",
	"internal/bustest", "internal/chaos", "internal/golden", "internal/load", "internal/mutants", "internal/pythontest",
}

func namesOf(table []promise) (names []string) {
	for _, p := range table {
		for _, name := range strings.Fields(p.names) {
			names = append(names, p.path+"."+name)
		}
	}
	return names
}
