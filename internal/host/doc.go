// Package host runs a pipeline as processes: it opens the bus and its socket,
// starts the stages' processes and starts them again when they end, serves
// metrics, and takes everything down in order. `omnibus run` is [Run] and
// little else.
//
// # A run
//
//  1. The graph is checked and the bus opened, before anything starts.
//  2. The socket opens, and where metrics and health are served. A second host
//     of the same name ends here, and says who the first one is.
//  3. The processes of all stages start, side by side.
//  4. The host is ready when each of them has served its stage, and each stage
//     that waits for somebody else's process has one. A process that ends
//     before that, or takes too long, ends the run: a second try would do the
//     same. One that a signal killed is started again.
//  5. While it runs, processes that end are started again as their policy
//     says. When those of a stage are given up, requests that need it fail,
//     and the others go on.
//  6. It drains when its context ends, on the call drain, and when the main
//     process ends: open requests get their time, then the processes are told to
//     leave, and stopped if they do not, a stage after those that feed it, then
//     all memory is checked.
//
// # A hang
//
// A host hangs when nothing moves for a bound, and work waits for it: see
// host.Server.Progress. Then /healthz and /readyz say so, and the log does. When a run does not
// end in time after Options.Quit, its processes are killed, and Run returns.
//
// # Main
//
// The main process is a program that uses the bus: a gateway, or a job that ends.
// It is started when the host is ready, has the host's own standard input and
// output, and the run ends when it does, with its exit code.
//
// # Trust
//
// A pipeline file names programs: who runs it trusts its author. Processes run
// as the host's user and are not confined. The sockets are for this user alone,
// and for those that the file lists. What is served over HTTP says
// what the bus does and never what is in a payload.
//
// # Concurrency
//
// Run is called once for each host; several hosts may live in one process. The
// state of the processes changes on the child manager's goroutine and the
// server's, under one mutex, which is never held over a call to either.
//
// # What a crash leaves
//
// When the host dies, the kernel kills its processes (Linux) and gives back the
// memory and the lock on the socket. The socket files stay; the next host of
// that name replaces them.
package host
