// Package host runs a pipeline as processes: it opens the bus and its socket, starts the stages'
// processes and restarts those that end, serves metrics, and closes everything in order.
// `omnibus run` is little more than a call of [Run].
//
// # A run
//
//  1. The graph is checked and the bus opened, before any process starts.
//  2. The bus's socket opens, and the server of metrics and health. A second host of the same name
//     fails here; its error names the first host.
//  3. The processes of all stages start at the same time.
//  4. The host is ready when each process has served its stage, and each stage whose processes are
//     started elsewhere has one. A process that ends before that, or takes too long, ends the run:
//     a second try would end in the same way. A process that a signal killed is started again.
//  5. While the host runs, processes that end are started again as their policy says. When those of
//     a stage are given up, requests that need the stage fail, and others go on.
//  6. The host drains when its context ends, on the call drain, and when the main process ends:
//     open requests get their time, then the processes are told to leave, and stopped if they do
//     not. Each stage ends after the stages that feed it. At the end all memory is checked.
//
// # A hang
//
// A host hangs when it makes no progress for some time while work waits for it: see
// host.Server.Progress. Then /healthz, /readyz and the log say so. If a run does not end in time
// after Options.Quit, its processes are killed, and Run returns.
//
// # Main
//
// The main process is a program that uses the bus: a gateway, or a job that ends. It is started when
// the host is ready, has the host's standard input and output, and the run ends with it, with its
// exit code.
//
// # Trust
//
// A pipeline file names programs: its user must trust its author. Processes run as the host's user
// and are not confined. The sockets are open to this user, and to the users that the file lists. The
// HTTP server reports what the bus does and never the content of a payload.
//
// # Concurrency
//
// Run is called once for each host; several hosts may live in one process. The state of the
// processes changes on the goroutines of the child manager and of the server, under one mutex, which
// is never held over a call to either.
//
// # What a crash leaves
//
// When the host dies, the kernel kills its processes (Linux) and releases the memory and the lock on
// the socket. The socket files stay; the next host of that name replaces them.
package host
