// Package child runs the processes of a host: it starts them, reads their output, restarts those that
// end, and stops them.
//
// A [Manager] belongs to one host. [Manager.Start] starts a process and returns a [Child], which
// outlives the process: when the process ends, a successor is started after a growing pause, until the
// policy or the limit of the [Spec] ends that. [Child.Restart] starts a process by hand. [Event] lists
// the steps in the life of a child.
//
// The package knows nothing of the bus. Its owner reports by [Child.Ready] that a process does its
// work, and learns from [Manager.Autopsy] why a process died.
//
// # Trust
//
// A child runs as the user of the host and is not confined. It may print any bytes at any rate, and may
// die or hang at any moment: memory stays bounded, and output is made printable before it is kept or
// written.
//
// # Processes
//
// Each child leads a process group of its own, and signals go to the group. An interrupt typed at the
// terminal therefore reaches the host alone, which stops its children in its own order. A child's
// descendants end with it: as soon as the process that was started is dead, the rest of its group is
// killed. A descendant that leaves the group (setsid) escapes; the package does not wait for it.
//
// # Output
//
// Lines go to Options.Out as "name | line", each in one piece, and the last ones are kept for [Status]
// and [Death]. A child that prints blocks while Out blocks, so Out must not block for ever. A program
// that buffers its output to a pipe, as Python does, must be told not to by its environment.
//
// # Order
//
// Events are delivered one at a time. Those of one child come in the order in which they happened; the
// last one comes before [Child.Stop] returns.
//
// # Concurrency
//
// All methods are safe for concurrent use. A child has one goroutine that supervises it, and a process
// has three that wait: for its exit, and for two pipes. [Manager.Close] stops all of them and leaves no
// process, descriptor or goroutine.
//
// # What a crash leaves
//
// When the host dies, even by SIGKILL, the kernel kills the processes that it started (Linux; the
// forker says how). Their descendants are not killed: they lose their output and their connection, and
// must notice that themselves. No files are left.
//
// # Other systems
//
// Only on Linux do children die with the host. Systems other than Unix have no process groups and no
// SIGTERM: there, stopping a child kills it at once, and its descendants are not ended.
package child
