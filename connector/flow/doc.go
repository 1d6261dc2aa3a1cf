// Package flow hands values from stage to stage through connectors: it says which connectors a
// stage opens, and does the two steps of a transfer.
//
//	stage 0                                        stage 1
//	-------                                        -------
//	n, sent, err := s0.Send(ctx, "1", request, v)
//	    \_ put, measure                n, a small map, over any queue
//	                                               v, got, err := s1.Receive(ctx, n)
//	                                                   \_ resolve, get, measure
//
// A [Notification] is that of vLLM-Omni's adapter, field for field, so either end can be one of its
// processes. A [Plan] lists the edges of a pipeline with their connectors; a stage opens the
// connectors of the edges that it sends or receives on. Stages may have any number of edges on
// either side, and edges may share a connector. Each edge is a [Path], which does the two steps and
// adds up their times; the edges of a bus that have a connector are paths too.
//
// As in vLLM-Omni, the request is the key of its value. In a plan that is not one chain of stages a
// request may have values on several edges at once; if the key alone names a value of the
// connector, as with segments of generation 2, the key is then {request}@{from}_{to}.
//
// # Errors
//
// A value that is not where its notification says is a [MissingError], which names the request and
// the two stages; the request cannot continue. A wrong plan is refused before any connector is
// opened.
//
// # Concurrency
//
// A Plan is not changed after it was made. The methods of a Stage and of a Path may be called from
// any goroutine.
package flow
