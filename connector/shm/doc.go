// Package shm is the connector type SharedMemoryConnector: values go from process to process of one
// host through shared memory. A program registers the [Type].
//
// There are two modes:
//
//   - ring, the default: the serializer encodes into this project's store, and readers read values
//     there. In a process that is attached to a host ([connector.Config].Exchange) the store is the
//     host's exchange, which all attached processes share; in other processes it is one ring for
//     all connectors of the process.
//   - segment: each value is a named segment of the system, in the format of vLLM-Omni, whose
//     processes may be at the other end.
//
// Values of up to shm_threshold_bytes travel in the metadata: a Get without metadata does not find
// them, and no figure counts them. Without that setting, all segments of generation 2, the default,
// are found by their key. A value of a lasting connector ([connector.Options]) is found by its key
// with any setting, except in generation 1.
//
// # Lifetime
//
// A value that was not got is released with its transport, with its process, and after ttl. In an
// exchange the host's exchange_ttl applies; ttl and ring_bytes have no effect. The ring of a
// process is closed when all its transports are closed and all its values released. While it
// exists, the transports of the process must agree on ring_bytes, ttl and timeout.
package shm
