// Package flow hands values from stage to stage through connectors: which ones a
// stage must open, and the two steps of a transfer.
//
//	stage 0                                        stage 1
//	-------                                        -------
//	n, sent, err := s0.Send(ctx, "1", request, v)
//	    \_ put, measure                n, a small map, over any queue
//	                                               v, got, err := s1.Receive(ctx, n)
//	                                                   \_ resolve, get, measure
//
// A [Notification] is that of vLLM-Omni's adapter, field for field, so either end
// can be one of its processes. A [Plan] lists the edges of a pipeline with their
// connectors; a stage opens those that it sends or receives through. Stages may have
// any number of edges on either side, and edges may share a connector. Each edge is a
// [Path], which does the two steps and adds up their times; the edges of a bus that have
// a connector are paths too.
//
// A request is the key of its value, as there. Where a plan is not one chain of stages a
// request may be on several edges at once; with a connector for which the key alone says
// where a value lies, such as segments of generation 2, the key is
// {request}@{from}_{to} then.
//
// # Errors
//
// A value that is not where its notification says is a [MissingError]: its
// request cannot go on, and the error says which it is, and between which stages. What
// is wrong with a plan is found before anything is opened.
//
// # Concurrency
//
// A Plan is a value that nobody changes. The methods of a Stage and of a
// Path may be called from any goroutine.
package flow
