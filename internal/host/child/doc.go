// Package child runs the processes of a host: it starts them, reads what they
// print, starts them again when they end, and stops them.
//
// A [Manager] belongs to one host. [Manager.Start] starts a process and returns
// a [Child], which outlives the process: when it ends, another one takes its
// place, after a pause that grows, until the policy or the limit of the [Spec]
// says otherwise. [Child.Restart] starts one by hand. [Event] lists what happens on the way.
//
// The package knows nothing of the bus. Whether a process does what it was
// started for, its owner says by [Child.Ready]; why one is dead, the owner
// learns from [Manager.Autopsy].
//
// # Trust
//
// A child runs as the user of the host and is not confined. It may print what
// it likes, as fast and as long as it likes, and may die or hang at any moment:
// memory stays bounded, and what it printed is made printable before it is
// kept or written anywhere.
//
// # Processes
//
// Each child leads a process group of its own, and signals go to the group. An
// interrupt typed at the terminal therefore reaches the host alone, which stops
// its children in the order it likes, and a child's own children end with it:
// as soon as the process that was started is dead, the rest of its group is
// killed. A descendant that leaves the group (setsid) escapes; nothing here
// waits for it.
//
// # Output
//
// Lines go to Options.Out as "name | line", each whole, and the last ones are
// kept for [Status] and [Death]. A child that prints blocks while Out blocks,
// so Out must not block for ever. A program that buffers its output when it
// goes to a pipe, as Python does, must be told not to by its environment.
//
// # Order
//
// Events are delivered one at a time. Those of one child come in the order in
// which things happened; the last one comes before [Child.Stop] returns.
//
// # Concurrency
//
// All methods are safe for concurrent use. A child has one goroutine that
// decides, and a process three that wait: for its exit, and for two pipes.
// [Manager.Close] stops all of them and leaves no process, descriptor or
// goroutine.
//
// # What a crash leaves
//
// When the host dies, even by SIGKILL, the kernel kills the processes that it
// started (Linux; see the forker for what that takes). Their own children are
// not killed: they lose their output and their connection, and have to notice.
// Nothing is kept on disk.
//
// # Other systems
//
// Children survive the death of the host everywhere but on Linux. Systems
// other than Unix have no process groups and no SIGTERM: there, stopping a child
// kills it at once, and its own children are on their own.
package child
