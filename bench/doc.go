// Package bench measures omnibus beside other programs that carry messages. Run has one table for
// that, with a row for each kind of work and a column for each program, for `omnibus-bench` and `make
// bench-peers`. RunGPU measures tensors in the memory of a GPU beside raw copies, for `omnibus-bench gpu`.
// The benchmarks of a package measure its parts.
//
// # Rows
//
// A figure is in µs a message, but for rows about an idle side.
//
//	request      one message of 64 B there and one back, each a request of its own, one or
//	             16 at a time
//	stream       payloads there and back in one request, one after the other
//	one-way      payloads there, until the last of some was read
//	fan-out      the same to eight processes, which each get every payload
//	chain        through three processes, of which each sends as much to the next; one
//	             payload at a time
//	python       payloads there and back between two processes in Python, one after the other
//	value        a value of one array put under a key by one process in Python, and got and added up
//	             by another
//	in-process   messages of 64 B through four stages in this process, which copy them: a stream, or
//	             one request after the other
//	idle-memory  MiB that a host or a server has of its own, with ten processes attached
//	idle-cpu     the processor time of all processes of such a side that is sent no message, in
//	             per cent of one core
//
// With host-calls in its name, a row has the process that hosts the bus as its caller. The list of
// rows is peerRows.
//
// # Columns
//
//	omnibus       Go nodes at a host of their own; in Python its client, and OmnibusConnector in
//	              mode ring
//	unix          stream sockets; relayed: a process between the two copies from one to the
//	              other
//	grpc          gRPC through a Unix socket: calls for requests, a stream otherwise; relayed: a server
//	              between the two, which calls the other
//	nats          a NATS server, by TCP: requests with replies, or subjects
//	zmq           pairs of sockets of ZeroMQ in Python
//	mp.Queue      Python's multiprocessing.Queue
//	segment       OmnibusConnector in mode segment, which has no host
//	vllm-omni     vLLM-Omni's SharedMemoryConnector
//	channels      goroutines with channels of the length of an edge's window
//	protoactor    actors of protoactor-go, with its own mailboxes, which have no bound
//
// A program is taken as its documentation has it, and relays no more than it has to: gRPC and sockets
// connect the two ends directly, NATS has its server in between. A host stands between the ends
// of a request; so each of the first two is there with a process in between as well. The others
// keep no books, repeat nothing and see no deaths.
//
// The environment variable OMNIBUS_PYTHON names the Python of rows that need one; python3 is the
// default. OMNIBUS_VLLM_OMNI names a directory with the package vllm_omni. A column whose program is
// missing on the machine is left out, with a reason below the table.
//
// # Method
//
// Each side of a row is the processes that a user would have: a caller, which is this process or one
// in Python, a host of a bus or a server, and those that do the work. Every byte of a payload is read
// where it arrives, and the run fails when it is not as it was sent. Goroutines, actors and
// processes are there before the clock starts.
//
// A side is measured in rounds, for a slice of time in each; all sides of a row take turns, in an
// order in which each comes behind every other equally often. So noise that lasts longer than a
// round hits all of them alike. A figure is the median of all rounds. A factor in brackets is omnibus by the
// other program, the median of the rounds' own: below one, omnibus takes less. Table.WriteSVG draws
// the factors of a table, for `omnibus-bench plot`.
//
// Users' stages compute. With Options.Busy, processes do so beside what is measured: a wait for a
// processor is then a part of a figure.
//
// # GPUs
//
// RunGPU has a figure for each of its scenarios, and targets for one kind of GPU. A scenario is set up
// once, runs once for warming up, and then in rounds, in which it and its raw copies take turns, each
// after a garbage collection. The best rounds of both count: other processes can only make a
// round slower. Missing a target is a finding and not an error.
//
// This process sends and a peer receives, each with the GPU open, a store and a
// lane of tensors of its own; handles travel in a lane in each direction. A round
// sends some tensors until the peer answers that it is done with the last, and
// then has the GPU make as many raw copies of as many bytes, in one go. When the GPU of
// the peer begins, its stream writes a word, which the peer spins on to see; both
// processes read the same clock. Tensors that travel another way than they should
// fail the run.
//
// A GPUProducer sends tensors to consumers that are no Go programs, and measures
// nothing: scripts/gpu_torch.py does, in PyTorch, beside torch.multiprocessing.
//
// Ordering is no figure but a count of mistakes. Streams are held up by copies, as many as
// take 200 ms; what is wrong on purpose has to show, or the others say nothing.
//
// Leases are counted when nothing is on its way: each process waits for its streams,
// and until all that it received is settled, collects garbage, and counts what it has
// itself; the two are added up. That is done after as many as use every slot once, and
// again at the end. What is shown is the difference. Memory of the GPU is what the
// driver says is in use on all of it.
//
// A process that is killed is dead when its pidfd is readable: until then the kernel takes it
// down, and no process can do anything. Its chunks are free when a stage of a bus that was
// waiting for them has them all, so that the time is that of everything in between. A
// pool that had other room would show: the stage would not wait.
//
// # Concurrency
//
// Run and RunGPU have the process to themselves: memory and processor time are those of the whole
// process.
//
// # What a crash leaves
//
// Another process ends when its standard input does, and so with the process that measures.
// What they share has no name, but for sockets in a temporary directory, which a
// crash leaves behind, and values under keys: the next connector of omnibus that is opened
// removes a segment of omnibus. A file of vLLM-Omni's connector stays in /dev/shm, with a name
// that has omnibus-bench in it.
package bench
