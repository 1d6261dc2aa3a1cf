// Package bus is what a Go program embeds: stages joined by edges, and
// requests that flow through them.
//
// A pipeline is a directed acyclic graph. Its stages are actors; its edges
// carry deliveries, small messages that name a payload in the bus's
// shared-memory store. [Open] checks the whole pipeline and starts it,
// [Bus.Submit] sends a request in, [Request.Recv] streams the results out.
//
//	b, err := bus.Open(ctx, bus.Pipeline{
//		Stages: []bus.StageSpec{
//			bus.Stage("upper", func(_ *bus.Task, in string) (string, error) {
//				return strings.ToUpper(in), nil
//			}),
//		},
//	}, bus.Options{})
//	r, err := b.Submit(ctx, "hello")
//	for d, err := range r.Results(ctx) { ... }
//
// # Requests
//
// A request is one journey through the whole graph. On each edge it is a
// stream of deliveries numbered from 0, closed by an end-of-stream mark. It
// ends exactly once: completed, failed with an error that names stage, edge,
// key and sequence, aborted, or past its deadline. Whichever it is, every
// payload it had in flight is reclaimed.
//
// # Order and delivery
//
// Deliveries of one request stay in order on an edge. Each is handled once,
// or, on a stage that says so, again after a panic; consumers then remove
// duplicates by sequence and attempt. A gap, a repeat or a swap fails the
// request by name. Nothing is promised about the order of different requests.
//
// # Concurrency
//
// A replica of a stage has up to MaxInflight requests open at a time, each in a
// slot, an actor of its own. The slots of one replica take turns: a handler
// never runs beside itself, except that while one waits inside an emission, for
// room or for the consumer, another request's handler may run. So a request
// that waits never holds up one that does not. A Batch, or a protoactor actor
// of your own, is one actor for all slots of a replica: what it emits queues
// where the consumer is behind.
//
// # Flow control, and why it cannot deadlock
//
// Each request has its own credit on each edge, in deliveries and in bytes, so
// requests never wait for each other's credit. Slots are the one thing they do
// share. A request takes one for its first delivery to a stage; where requests would
// wait for each other in a circle, one of them is let in above MaxInflight, and counted
// (StageStats.AdmittedAbove). Inputs that wait in a join for the other branch give
// their credit back and are counted against room set aside for them. The byte
// credit of all edges together fits the store, which Open checks unless
// Options.Overcommit is set; a payload that has credit, and finds no room in one
// piece all the same, goes to the heap after a moment, and is counted.
//
// # Other processes
//
// A stage that is [Remote] is served by processes. Package bus/host opens a socket for
// them, package bus/node makes a Go process a node, which serves stages with the same
// handlers and submits requests with the same calls; clients in other languages
// speak the protocol of docs/protocol.md. This package links neither, and no socket.
//
// # Values under keys
//
// Beside the requests a bus keeps an exchange: [Bus.Exchange] is a transport of package
// connector, between all processes of the bus. What is put is written once, into memory
// of the process that puts it, and read there by the process that gets it, first and
// alone. No window bounds it: what no process gets goes with its transport, its process,
// or after Options.ExchangeTTL.
//
// # Duties of a stage
//
// Finish what you Keep, and what an actor of yours or Recv was given. Send or
// Abort what you Reserve. Do not hold on to a Delivery or its bytes after its
// handler returned, unless it was kept. Until these are done the request is not
// gone, and Close waits for it.
//
// # For packages bus/host and bus/node alone
//
// A program needs none of the following. The ends of a bus at other processes work through
// [Backend] and [Services], through the controls of a delivery, a request and an emitter
// ([DeliveryControl], [RequestControl], [EmitterControl]), and with plain data:
//
//   - a stage that processes serve: [RemoteStage], [Replica], [ReplicaInfo], [ReplicaTask], [TaskInfo], [Work],
//     [ReplicaConn], [TaskConn];
//   - a part of a pipeline in a node: [Part], [OpenedPart], [Port], [RequestOptions], [RequestOptionsOf], [OpenLane],
//     [RequestOwner], [Sink], [RemoteSink], [Feeder];
//   - payloads and emissions: [Reader], [DeliveryOf], [EndOfStream], [Emission], [EmissionIndex], [Origin],
//     [AfterUnlock], [Turn];
//   - reports: [Stream], [DirectPath], [Holder], [SpaceWait], [Progress], [RequestStatus].
package bus
