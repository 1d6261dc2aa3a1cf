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
//	one-way      payloads there, with one answer after the last of a group was read
//	fan-out      the same to eight processes, which each get every payload
//	chain        through three processes, each of which sends as much to the next; one
//	             payload at a time
//	python       payloads there and back between two processes in Python, one after the other
//	value        a value of one array put under a key by one process in Python, and got and added up
//	             by another
//	in-process   messages of 64 B through four stages in this process, which copy them: a stream, or
//	             one request after the other
//	idle-memory  private memory of a host or a server in MiB, with ten processes attached
//	idle-cpu     processor time of all processes of such a side while no message is sent, in
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
// A program is used as its documentation describes, with as few relays as possible: gRPC and sockets
// connect the two ends directly, NATS has its server in between. A host is between the ends of a
// request, so gRPC and sockets also have a column with a process in between. The other programs
// keep no accounts, repeat no work and detect no deaths.
//
// The environment variable OMNIBUS_PYTHON names the Python of rows that need one; python3 is the
// default. OMNIBUS_VLLM_OMNI names a directory with the package vllm_omni. A column whose program is
// missing on the machine is left out, with a reason below the table.
//
// # Method
//
// Each side of a row consists of the processes that a user would have: a caller, which is this process
// or one in Python, a host of a bus or a server, and processes that do the work. Every byte of a payload
// is read where it arrives, and the run fails when a payload differs from the one that was sent.
// Goroutines, actors and processes are started before the clock starts.
//
// A side is measured in rounds, for a slice of time in each. All sides of a row alternate, in an
// order in which each follows every other equally often, so noise that lasts longer than a round
// affects all of them alike. A figure is the median of all rounds. A factor in brackets is the figure of
// omnibus divided by that of the other program, as the median of the factors of the rounds: below one,
// omnibus takes less. Table.WriteSVG draws the factors of a table, for `omnibus-bench plot`.
//
// Users' stages compute. With Options.Busy, other processes compute during the measurement, and a
// figure includes the waits for a processor.
//
// # GPUs
//
// RunGPU has a figure for each of its scenarios, and targets for one kind of GPU. A scenario is set up
// once, runs once for warming up, and then in rounds, in which it and its raw copies alternate, each
// after a garbage collection. The best rounds of both count: other processes can only make a
// round slower. A missed target is a finding and not an error.
//
// This process sends and a peer receives, each with the GPU open, a store and a
// lane of tensors of its own; handles travel in a lane in each direction. A round
// sends some tensors until the peer answers that it has finished the last, and
// then has the GPU make as many raw copies of as many bytes, in one submission. To report
// when the GPU of the peer begins, its stream writes a word on which the peer spins; both
// processes read the same clock. The run fails when a tensor travels another way than
// the scenario says.
//
// A GPUProducer sends tensors to consumers that are no Go programs, and does not
// measure: scripts/gpu_torch.py measures, in PyTorch, beside torch.multiprocessing.
//
// The scenario of ordering counts mistakes. Copies of 200 ms in total delay the streams. It also
// makes mistakes on purpose, and counts those that no check detects: only if all are detected
// do the other counts mean anything.
//
// The scenario of leases counts resources when no tensor is in flight: each process waits
// for its streams, and until every received message is settled, collects garbage, and counts its
// own resources; both counts are added up. It counts after every slot has been used once, and
// again at the end, and shows the difference. Memory of the GPU is the memory in use on the
// whole GPU, as the driver reports it.
//
// A killed process is dead when its pidfd is readable: until then the kernel is tearing it
// down, and no process can do anything. Its chunks are free when a stage of a bus that was
// waiting for them has all of them, so the time includes every step in between. If the
// pool had other space, the stage would not wait, and the run fails.
//
// # Concurrency
//
// Only one call of Run or RunGPU at a time, and no other work in the process: memory and processor time
// are those of the whole process.
//
// # What a crash leaves
//
// Each peer process ends when its standard input ends, and so with the process that measures.
// Shared resources have no names, with two exceptions. Sockets are in a temporary directory, which a
// crash leaves behind. Values under keys are named segments: the next connector of omnibus that is
// opened removes those of omnibus; a file of vLLM-Omni's connector stays in /dev/shm, with a name that
// contains omnibus-bench.
package bench
