// Package connector is the contract by which the stages of a pipeline hand values over through a
// transport that is chosen for each edge: put a value under a key, send the metadata to the next
// stage, get the value there.
//
//	producer                                            consumer
//	--------                                            --------
//	size, meta, err := c.Put(ctx, edge, key, value)
//	     \__ meta ... over the control plane ... meta __/
//	                                                    v, err := c.Get(ctx, edge, key, meta)
//	                                                    err = v.Decode(&value)
//	                                                    v.Release()
//
// It is the contract of vLLM-Omni's OmniConnectorBase (put, get, cleanup, health, close) in Go. A
// [Connector] implements the part that all transports share: keys, encoding, small values in the
// metadata, counters, deadlines. A [Transport] moves bytes, and is the interface that an
// implementation writes; a [Registry] holds the [Type]s that a program can open. Every transport
// passes the suite in connectortest.
//
// # Promises of a transport
//
//   - A value is got at most once: a successful Get consumes it. A value of one edge is not visible
//     on another, unless the transport is a [KeySharer].
//   - Get returns the bytes that were put, or an error; never a part of them.
//   - Get does not wait. Without a value under the key it is [ErrNotFound], which differs from all
//     failures. [Connector.Await] waits for as long as its context lasts.
//   - A key that is in use is replaced by the next Put, as in vLLM-Omni.
//   - A Peek leaves the value for one Get.
//   - Cleanup releases values that were not got, by exactly their key; Close reclaims all such
//     values of this connector. Neither touches values of other connectors.
//   - A process that dies leaves no value for ever; each transport says when it reclaims them.
//     Lasting values ([Options].Lasting) stay.
//
// # Copies
//
// If the serializer knows the size beforehand ([codec.Sizer]), it encodes the value into the
// transport's memory. A value that was got lies in the transport's memory until Release, if that
// memory can be read in place.
//
// # Trust
//
// Keys, metadata and payloads come from other processes. A key is checked before it names anything
// ([CheckKey]); metadata is read field by field; decoding is as strict as the serializer. No code
// unpickles them.
//
// # Concurrency
//
// All methods of a Connector may be called from any goroutine. A [Value] belongs to the caller of
// Get, which releases it.
package connector
