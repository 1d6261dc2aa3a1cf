// Package bus runs a pipeline inside a Go program: stages joined by edges, and
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
// A request is one run through the whole graph. On each edge it is a stream of
// deliveries numbered from 0, closed by an end-of-stream mark. It ends exactly
// once: completed, failed with an error that names stage, edge, key and
// sequence, aborted, or past its deadline. After each outcome all payloads in
// flight are reclaimed.
//
// # Order and delivery
//
// Deliveries of one request stay in order on an edge. Each is handled once, or
// again after a panic if the stage allows it; consumers then remove duplicates
// by sequence and attempt. A gap, a repeat or a swap fails the request with an
// error that names the sequence. Different requests have no order.
//
// # Concurrency
//
// A replica of a stage has up to MaxInflight requests open at a time, each in a
// slot with its own actor. A replica runs one handler at a time; while a handler
// waits inside an emission, for space or for the consumer, the handler of another
// request may run. So a waiting request never blocks another one. A Batch, or a
// protoactor actor of the program, is one actor for all slots of a replica: its
// emissions queue while the consumer is behind.
//
// # Flow control, and why it cannot deadlock
//
// Each request has its own credit on each edge, in deliveries and in bytes, so
// requests never wait for each other's credit. Only slots are shared. A request
// takes a slot of a stage for its first delivery there; if requests wait for each
// other's slots in a cycle, one of them is admitted above MaxInflight, and counted
// (StageStats.AdmittedAbove). Inputs that wait in a join for the other branch
// return their credit and count against Options.JoinBytes. The byte credit of all
// edges together fits the store, which Open checks unless Options.Overcommit is
// set; a payload with credit that still finds no space in one piece goes to the
// heap after 20 ms, and is counted (EdgeStats.Spilled).
//
// # Other processes
//
// A stage that is [Remote] is served by other processes. Package bus/host opens a socket
// for them. Package bus/node makes a Go process a node, which serves stages with the same
// handlers and submits requests with the same calls. Clients in other languages speak the
// protocol of docs/protocol.md. This package imports neither of the two and opens no socket.
//
// # Values under keys
//
// Beside requests a bus has an exchange: [Bus.Exchange] is a transport of package
// connector between all processes of the bus. A value is written once, into memory of
// the process that puts it. The first process that gets it reads it there; no other
// process gets it. No window bounds the values: one that no process gets is removed with
// its transport, with its process, or after Options.ExchangeTTL.
//
// # Duties of a stage
//
// Finish each delivery that you Keep, that your actor receives, or that Recv
// returns. Send or Abort each Buffer of Reserve. Do not use a Delivery or its
// bytes after its handler has returned, unless it was kept. Until these duties
// are done the request stays alive, and Close waits for it.
//
// # For packages bus/host and bus/node alone
//
// A program needs none of the following. Packages bus/host and bus/node, which connect a bus to
// other processes, use [Backend] and [Services], the controls of a delivery, a request and an emitter
// ([DeliveryControl], [RequestControl], [EmitterControl]), and plain data:
//
//   - a stage that other processes serve: [RemoteStage], [Replica], [ReplicaInfo], [ReplicaTask], [TaskInfo], [Work],
//     [ReplicaConn], [TaskConn];
//   - a part of a pipeline in a node: [Part], [OpenedPart], [Port], [RequestOptions], [RequestOptionsOf], [OpenLane],
//     [RequestOwner], [Sink], [RemoteSink], [Feeder];
//   - payloads and emissions: [Reader], [DeliveryOf], [EndOfStream], [Emission], [EmissionIndex], [Origin],
//     [AfterUnlock], [FlushBatch];
//   - reports: [Stream], [DirectPath], [Holder], [SpaceWait], [Progress], [RequestStatus].
package bus
