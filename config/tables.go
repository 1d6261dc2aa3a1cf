package config

import (
	"math"
	"strings"
	"sync"

	"github.com/omnibus-runtime/omnibus/bus"
)

// The keys that this package reads, each with what reads it and what it is for.
// The checker reads files by these tables, and Schema writes them down.

// places says where under omnibus each setting of the bus stands, but for env, which is
// vLLM-Omni's as well.
var places = sync.OnceValue(func() map[string]string {
	c, all := &reading{checker: new(checker)}, make(map[string]string)
	add := func(place string, keys fields) {
		for key := range keys {
			all[key] = strings.TrimPrefix(all[key]+" or "+place, " or ")
		}
	}
	add("at the top of the file", c.busFields(new(Pipeline)))
	add("in a stage", c.stageOmnibusFields(new(draft)))
	add("in an entry of edges", c.edgeOmnibusFields(new(listed)))
	delete(all, "env")
	return all
})

// fileFields are the keys at the top of a file.
func (c *reading) fileFields(s *sections) (known, shared fields) {
	known = fields{
		"stages":     reader{func(_ string, n *node) { s.stages = n }, nullable(list(ref("stage")))}.about("The stages of the pipeline, in the newer shape of a file."),
		"stage_args": reader{func(_ string, n *node) { s.stageArgs = n }, nullable(list(ref("stage")))}.about("The stages of the pipeline, in the older shape of a file."),
		"connectors": keep(&s.connectors, takesConnectors).about("Connectors by name: how the messages of an edge travel."),
		"edges":      keep(&s.edges, list(ref("edge"))).about("Edges between stages, and their windows."),
		"runtime":    keep(&s.runtime, ref("runtime")).about("Defaults of edges; in the older shape of a file also its connectors and edges."),
		keyOmnibus:   keep(&s.omnibus, ref("bus")).about("Settings of the bus as a whole."),
		// Once a file is assembled these two are gone.
		keyBase:      optional(reader{func(string, *node) {}, takesText}).about("A file that this one is laid over: its path, relative to the folder of this one."),
		keyPlatforms: optional(reader{func(string, *node) {}, mapOf(nullable(ref("platform")))}).about("Changes by the name of a platform, of which `--platform` chooses one."),
	}
	shared = fields{
		"pipeline": keep(&s.pipeline, schema{}).about("The model's pipeline, and the name of this one unless omnibus.name gives it."),
	}
	return known, shared
}

func (c *reading) runtimeFields(s *sections) (known, shared fields) {
	known = fields{
		"defaults":   keep(&s.defaults, c.defaultsFields().closed()).about("What counts where an edge or a stage has nothing of its own."),
		"connectors": keep(&s.innerConnectors, takesConnectors).about("Connectors by name, in the older shape of a file."),
		"edges":      keep(&s.innerEdges, list(ref("edge"))).about("Edges between stages, in the older shape of a file."),
	}
	shared = fields{"enabled": optional(c.flag(&s.enabled))}
	return known, shared
}

func (c *reading) defaultsFields() fields {
	return fields{
		"window_size":  optional(c.checker.window(&c.window)).about("How many messages may be under way on an edge; -1 leaves it to the byte window."),
		"max_inflight": optional(c.count(&c.inflight, bus.MaxInflight)).about("How many requests a stage works on at a time."),
	}
}

// busFields are the settings of the bus as a whole.
func (c *reading) busFields(p *Pipeline) fields {
	b := &p.Bus
	return fields{
		"name":          c.name(&p.Name).about("Name of the bus; by default that of the file."),
		"ring_bytes":    c.size(&b.RingBytes).about("Size of the shared memory for payloads."),
		"large_bytes":   c.size(&b.LargeBytes).about("Size of the memory for payloads that are larger than the byte window of their edge, and so of the largest; by default as much as the machine has."),
		"slots":         c.count(&b.Slots, math.MaxInt32).about("How many payloads fit at a time, of any size."),
		"max_requests":  c.count(&b.MaxRequests, bus.MaxRequests).about("How many requests may be open at a time."),
		"inline_bytes":  c.size(&b.InlineBytes).about("Payloads up to this size travel in the message."),
		"serializer":    word(c.checker, &b.Serializer, SerializerMsgpack, SerializerOmni, SerializerRaw).about("How payloads are encoded."),
		"stall_timeout": c.duration(&b.StallTimeout).about("After how long without progress a request is reported."),
		"exchange_ttl":  c.duration(&b.ExchangeTTL).about("How long a value that a program put under a key waits for another that gets it."),
		"memory":        at(&c.memory, word(c.checker, &b.Memory, MemoryShared, MemoryHeap)).about("Where payloads lie: mapped by all processes, or in this one alone."),
		"socket":        c.text(&b.Socket).about("Path of the host's socket, relative to the folder of the file."),
		"allow_uids":    c.users(&b.AllowUIDs).about("Users that may attach besides the host's own."),
		"http":          c.endpoint(&b.HTTP).about("Where to serve metrics and health: a loopback host:port, or the path of a socket."),
		"wait":          word(c.checker, &b.Wait, bus.Waits()...).about("How the processes wait for each other: park gives the processor away at once, poll takes one for each process."),
		"main":          c.commandLine(&b.Main).about("A program that uses the bus, and with which the run ends."),
		"grace":         c.duration(&b.Grace).about("What open requests have when the host drains."),
	}
}

// stageFields are the keys of a stage.
func (c *reading) stageFields(d *draft) (known, shared fields) {
	known = fields{
		keyStageID:            reader{func(string, *node) {}, takesStageID}.about("What the stage is called, by a number or a text."),
		"input_connectors":    optional(c.references(&d.inputs, "from_stage_")).about("Connectors of the edges that lead here, by from_stage_ID."),
		"output_connectors":   optional(c.references(&d.outputs, "to_stage_")).about("Connectors of the edges that leave here, by to_stage_ID."),
		"engine_input_source": optional(c.sources(&d.sources)).about("The stages whose output this one takes."),
		"max_inflight":        optional(c.count(&d.flatInflight, bus.MaxInflight)).about("How many requests the stage works on at a time."),
		"final_output":        optional(c.flag(&d.FinalOutput)).about("Whether what the stage makes goes to the caller."),
		"final_output_type":   keep(&d.outputType, schema{}).about("What kind of output that is, such as audio."),
		keyOmnibus:            keep(&d.ours, ref("stage_omnibus")).about("Settings of the bus for this stage."),
	}
	shared = fields{
		"runtime": keep(&d.runtime, c.stageRuntimeFields(d).open(nil)).about("Where the stage runs, for the model."),
	}
	return known, shared
}

func (c *reading) stageRuntimeFields(d *draft) fields {
	return fields{"max_inflight": optional(c.count(&d.runtimeInflight, bus.MaxInflight)).about("How many requests the stage works on at a time.")}
}

// stageOmnibusFields are the settings of the bus for one stage.
func (c *reading) stageOmnibusFields(d *draft) fields {
	return fields{
		"handler":        c.text(&d.Handler).about("The registered handler that does the stage's work; by default that of its id."),
		"replicas":       c.count(&d.Replicas, bus.MaxInflight).about("How many of the stage, or of its processes, work side by side."),
		"max_inflight":   c.count(&d.ownInflight, bus.MaxInflight).about("How many requests the stage works on at a time."),
		"state":          word(c.checker, &d.State, StateNone, StateRequest).about("What the stage keeps between messages: nothing, or something for each request."),
		"attempts":       c.count(&d.Attempts, math.MaxInt32).about("How often a message is handled again when handling it fails, at most."),
		"replay":         c.flag(&d.Replay).about("Whether a stage that keeps state gets a request's messages again after a failure."),
		"join":           at(&d.joinPos, c.flag(&d.Join)).about("Whether the stage waits for one input from each of its edges."),
		"batch":          c.batch(&d.Batch).about("Several messages at a time, in a program that builds its stages from the file. It has no effect with exec or attach: a process says it by itself."),
		"exec":           c.commandLine(&d.Exec).about("Program and arguments of the stage's processes, which the host starts."),
		"env":            c.environment(&d.Env).about("Environment variables of those processes."),
		"cwd":            c.text(&d.Cwd).about("Folder of those processes, relative to that of the file."),
		"alone":          c.flag(&d.alone).about("Whether the stage has no edges on purpose, where the file lists those of others."),
		"attach":         at(&d.attachPos, c.flag(&d.Attach)).about("Whether to wait for a process that the host does not start."),
		"routing":        at(&d.routingPos, word(c.checker, &d.Routing, wordsOf[Routing, bus.Routing]()...)).about("Which process gets a message."),
		"unordered":      at(&d.unorderedPos, c.flag(&d.unordered)).about("Whether the results of a request may come in another order than its messages, as with routing least-queue and round-robin."),
		"restart":        word(c.checker, &d.Restart, RestartAlways, RestartOnFailure, RestartNever).about("When a process that ended is started again."),
		"max_restarts":   c.count(&d.MaxRestarts, MaxRestarts).about("How often a process is started again within a minute."),
		"grace":          c.duration(&d.Grace).about("What a process has between SIGTERM and SIGKILL, and a fifth of it, 10 s at most, before SIGTERM, when the host has told it."),
		"start_timeout":  c.duration(&d.StartTimeout).about("What a process has until it serves its stage."),
		"handle_timeout": c.duration(&d.HandleTimeout).about("How long the stage's function may take for one message; then its process is killed."),
		"first_timeout":  at(&d.firstPos, c.duration(&d.FirstTimeout)).about("How long it may take in a process that has handled no message yet."),
	}
}

func (c *checker) batchFields(b *Batch) fields {
	return fields{
		"size": c.count(&b.Size, bus.MaxWindow).about("How many messages at most."),
		"wait": c.duration(&b.Wait).about("How long to wait for that many."),
	}
}

// edgeFields are the keys of an entry of edges.
func (c *reading) edgeFields(e *listed) fields {
	end := func(at *string) reader {
		return reader{func(key string, n *node) { *at, _ = c.stageID(key, n) }, takesStageID}
	}
	return fields{
		"from":         end(&e.from).about("The stage that sends; `caller` for the inputs of a first stage."),
		"to":           end(&e.to).about("The stage that receives; `caller` for the results of a last stage."),
		"window_size":  optional(c.checker.window(&e.window)).about("How many messages may be under way; -1 leaves it to the byte window."),
		"max_inflight": optional(c.count(&e.inflight, bus.MaxInflight)).about("How many requests the receiver works on at a time, unless it says so itself."),
		keyOmnibus:     keep(&e.ours, c.edgeOmnibusFields(e).closed()).about("Settings of the bus for this edge."),
	}
}

func (c *reading) edgeOmnibusFields(e *listed) fields {
	return fields{
		"window_bytes": c.size(&e.windowBytes).about("How many bytes of payloads may be under way; a larger payload passes alone."),
		"policy":       word(c.checker, &e.policy, wordsOf[Policy, bus.Policy]()...).about("What the sender does when the window is full."),
		"tensor_transport": at(&e.tensorsPos, word(c.checker, &e.tensors, wordsOf[TensorTransport, bus.TensorTransport]()...)).
			about("How tensors in GPU memory travel: through host memory, as the sender's own allocation, or through a pool that the processes share."),
		"min_bytes": c.sizeOrNone(&e.minBytes).about("How many bytes of tensors a message has at least that go by tensor_transport; smaller ones go through host memory."),
	}
}

// connectorFields are the keys of the definition of a connector.
func (c *checker) connectorFields(parts *connectorParts) fields {
	return fields{
		"name": reader{func(key string, n *node) {
			parts.nameAt = n
			c.text(&parts.name).read(key, n)
		}, takesConnectorType}.about("The type of the connector, such as " + SharedMemory + "."),
		"extra": keep(&parts.extra, schema{"type": "object"}).about("Settings of the connector, and those that the models on both ends read from it."),
	}
}
