// Package ringbuf allocates chunks of a byte slice: one writer allocates and
// releases them, many readers read their payloads. It uses no file, no
// descriptor and no process, and it does not log. The slice may be heap
// memory or a shared mapping; the package treats both alike.
//
// # Use
//
// The writer allocates a chunk, fills its payload, and tells the readers its
// address and size by means of its own. When the readers are done, the
// writer releases the chunk: at once, or when it needs space. To find chunks to release it
// walks them, the oldest first ([Ring.Oldest], [Ring.Run]).
//
// # Trust
//
// All bookkeeping lives in the writer's private memory. The 16-byte header in
// front of each payload is written for [Ring.Check]; the
// writer never reads it to make a decision. A peer that can write to the
// buffer can damage payloads and headers, and nothing else.
//
// # Space and order
//
// Chunks are allocated in a ring's order as long as they are released in
// that order. A chunk that stays blocks nothing: it becomes an island, and the
// allocator uses the space around it. [Ring.Allocate] fails
// only when no gap is large enough. With [Options.Reuse] it does not go round, and takes
// the space that was freed last.
//
// Ids count up from 1 and are never used twice.
// A [Chunk] therefore names one allocation for ever, and releasing it a second time is
// an error.
//
// # Concurrency
//
// The methods of [Ring] are for one goroutine at a time. Readers call none of
// them: they only read payload bytes, and only
// while they know that the chunk is not released. The caller must make a payload visible
// to a reader before its address, and must tell the writer when a reader has finished.
// The ring itself never touches a live
// payload, and it writes a header only while it allocates the chunk.
//
// # Cost
//
// Allocate and Release do a constant amount of work in the common case and
// allocate no memory once the tables have grown to their working size. When
// the gap in use runs out, the next one comes from bins of like-sized gaps.
// Only if no bin has a larger gap does a search check every gap of one bin, and
// it does so again only after one of them has grown.
// The tables take 56 bytes for each chunk or gap alive at the same time, and
// at most 4 bytes for each Align bytes of buffer (each 16 bytes, if Align is
// smaller) to find chunks by address. They never shrink.
//
// # After a crash
//
// When the writer dies its bookkeeping is lost. Payloads that readers
// hold stay readable, because no process writes to the buffer any more. A new
// writer starts with a new Ring over a buffer that no reader uses.
package ringbuf
