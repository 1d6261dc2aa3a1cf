// Package load holds the tests that run pipelines under load, in processes of their own, as a
// user runs them. It has no code of its own.
//
// A cell is one such run: a host, stages in its process, in Go nodes and in Python, and
// callers. A cell has one value of each dimension (dimensions_linux_test.go): the shape of the
// pipeline, the kinds of its stages, their state and routing, the caller, the concurrency
// relative to the slots and the permits of requests, the policy and the window of the edges after
// the first stage, the sizes of payloads, how the requests end, the streams, and which stage is
// slow, or blocks so that a request hangs if it waits for another's work (gate_linux_test.go). A
// matrix covers every pair of values of two dimensions, except pairs that a rule excludes for a
// given reason. All choices of a matrix and of its cells come from one seed.
//
// A cell fails a check of three:
//
//   - The watch: a cell fails if no request has begun or ended for -load.bound while some are
//     open. The watch writes the waiting requests, the host's status and metrics, and the stacks of
//     every process. The bound is one of progress: a slow cell does not fail.
//   - The checker: each request ends once, in a way that its plan allows, and its results are
//     those that the pipeline computes from its inputs, in order.
//   - The leftovers: when all requests have ended, no payload, slot or permit is held; the host
//     ends with exit status 0 after one SIGTERM, and no process of the cell is left.
//
// A plain run takes a few cells. The flags are for more:
//
//	go test ./internal/load -run '^TestLoad$' -v -timeout 0 -load.for 1h -load.seed 1
//	go test ./internal/load -run '^TestLoad$' -v -load.seed 1 -load.cell 17
//	go test ./internal/load -run '^TestLong$' -v -timeout 0 -load.long
//
// TestFaults plants faults in the stages and callers of a cell, which the checks must detect.
package load
