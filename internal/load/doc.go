// Package load holds the tests that run pipelines under load, in processes of their own, as a
// user runs them. It has no code of its own.
//
// A cell is one such run: a host, stages in its process, in Go nodes and in Python, and
// callers. What a cell is made of are its dimensions (dimensions_linux_test.go): the shape of the
// pipeline, the kinds of its stages, their state and routing, the caller, the concurrency beside
// the slots and the places for requests, the policy and the window of the edges behind the first
// stage, the sizes of payloads, how the requests end, the streams, and which stage is slow, or
// stands still so that a request hangs that waits for another's work (gate_linux_test.go). A
// matrix covers every pair of values of two dimensions, but for those that a rule excludes, and
// says why. All choices of a matrix and of its cells come from one seed.
//
// Three things fail a cell:
//
//   - The watch: no request has begun or ended for -load.bound while some are open. It writes
//     which requests wait, the host's status and metrics, and the stacks of every process. The
//     bound is one of movement: a cell that is slow does not fail.
//   - The checker: each request ends once, in a way that its plan allows, and its results are
//     those that the pipeline computes from its inputs, in their order.
//   - What is left: when all requests have ended, no payload, slot or place is held; the host
//     ends with exit status 0 after one SIGTERM, and no process of the cell is left.
//
// A plain run takes a few cells. The flags are for more:
//
//	go test ./internal/load -run '^TestLoad$' -v -timeout 0 -load.for 1h -load.seed 1
//	go test ./internal/load -run '^TestLoad$' -v -load.seed 1 -load.cell 17
//	go test ./internal/load -run '^TestLong$' -v -timeout 0 -load.long
//
// The faults that TestFaults plants in the stages and callers of a cell must be found.
package load
