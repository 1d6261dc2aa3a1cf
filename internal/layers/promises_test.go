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
		path: "bus",
		names: "Bus.Exchange Bus.Submit Bus.TrySubmit Emitter.EmitTensor Emitter.Reserve Expand Join2 Key " +
			"ParseTensorTransport " +
			"Request.Results Request.Wait Result Stage Task.Replica To WithTrace",
		reason: "a program builds a pipeline from Go functions, submits to it and serves stages as a node",
	},
	{
		path:   "bus/host",
		names:  "Server.Addr",
		reason: "a program tells others where its server listens",
	},
	{
		path:   "bus/node",
		names:  "Node.Epoch Node.Serve Node.Submit Node.TensorStats Node.TrySubmit",
		reason: "a program serves stages as a node, and submits requests",
	},
	{
		path:   "bus/tensorqueue",
		names:  "Item.Inputs Item.Message Join Queue.Drain Queue.Empty Queue.Get Queue.Put",
		reason: "it is for programs that have no pipeline",
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
		names:  "Pipeline.Build Pipeline.Plan",
		reason: "a program builds the bus of a file itself, or plans its connectors",
	},
	{
		path:   "connector",
		names:  "Connector.Peek Connector.Type Settings.Flag",
		reason: "a program takes what a transport and its settings say",
	},
	{
		path:   "connector/flow",
		names:  "NewMessage Plan.Open Stage.Cleanup Stage.Receive Stage.Send",
		reason: "programs hand payloads over as vLLM-Omni's stages do",
	},
	{
		path:   "connector/ring",
		names:  "Ring.Check Ring.Stats Room.Stats",
		reason: "a program checks and counts what its ring holds",
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
		reason: "handles are written as encoding.BinaryMarshaler says",
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
		path: "bus",
		names: "ErrBranchEnded ErrFinished ErrJoinRoom ErrMissing ErrNoEdge ErrOverloaded ErrPanic ErrPayload " +
			"ErrAfterEnd ErrSequence ErrWindowFull",
		reason: "a program decides by them whether it submits again, and its stages what they do",
	},
	{
		path:   "bus/node",
		names:  "ErrUntrusted",
		reason: "a program tells a host that it must not trust from one that is not there",
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
		names:  "ErrBuild ErrNoTransport Problem",
		reason: "a program that reads a pipeline shows its problems one by one",
	},
	{
		path:   "connector",
		names:  "ErrDecode ErrEncode",
		reason: "a program that hands values over tells its own faults from those of the transport",
	},
	{
		path:   "connector/flow",
		names:  "ErrEdge ErrPlan",
		reason: "a program tells faults of its plan from those of a transport",
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
		reason: "a test on other systems asks for it",
	},
	{
		path:   "messages",
		names:  "ErrMalformed ErrMalformedHandle",
		reason: "a program that reads handles from outside",
	},
	{
		path:   "shmstore",
		names:  "ErrClosed ErrNoDebt ErrStale",
		reason: "a consumer tells an object that is gone, a store that is, and a second delivery from a handle that is wrong",
	},
	{
		path:   "shmstore",
		names:  "ErrOwnerStalled",
		reason: "a reader in another process looks whether the owner is alive",
	},
	{
		path:   "shmstore",
		names:  "ErrQuarantined ErrTooManyReaders ErrUnknownReader",
		reason: "an owner removes the reader, waits until another leaves, or charges those that are there",
	},
	{
		path:   "shmstore/lane",
		names:  "ErrGeometry ErrOptions PeerError",
		reason: "a program uses lanes without a bus",
	},
}

// forTests are packages for tests and examples, and the tests of other programs: what they
// declare needs no caller, and what they call is not called by the product.
var forTests = []string{
	"bench", "examples", "codec/internal/codectest", "connector/connectortest", "cudaipc/drivertest", "cudaipc/emul",
	"internal/bustest", "internal/chaos", "internal/golden", "internal/mutants", "internal/pythontest",
}

func namesOf(table []promise) (names []string) {
	for _, p := range table {
		for _, name := range strings.Fields(p.names) {
			names = append(names, p.path+"."+name)
		}
	}
	return names
}
