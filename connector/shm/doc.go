// Package shm is the connector type SharedMemoryConnector: values go from process
// to process of one host through shared memory. [Type] describes it; a program that
// wants it registers it.
//
// There are two modes:
//
//   - ring, the default: values lie in this project's store, encoded straight into
//     it, and are read where they lie. Where the process is attached to a host
//     ([connector.Config].Exchange) that is the host's exchange, which all
//     processes attached to it share; elsewhere it is one ring for all
//     connectors of the process.
//   - segment: values lie in named segments of the system, one for each, in the
//     format of vLLM-Omni, whose processes may be at the other end.
//
// Values of up to shm_threshold_bytes travel in the metadata, so they are not found
// without it, and are not counted by anybody. Where it is not set, segments of generation 2,
// the default, are all found by their key. What is put through a connector that is lasting
// ([connector.Options]) is found by it whatever is set, except in generation 1.
//
// # Lifetime
//
// What nobody got goes with its transport, with its process, and after ttl: in the
// exchange after the host's own exchange_ttl, and ttl and ring_bytes say nothing.
// The ring of a process goes when all its transports are closed and all its values
// released. Transports of one process agree on ring_bytes, ttl and timeout while it
// is there.
package shm
