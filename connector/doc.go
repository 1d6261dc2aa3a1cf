// Package connector is the contract by which the stages of a pipeline hand
// values over through a transport that is chosen for each edge: put a value
// under a key, tell the next stage, get it there.
//
//	producer                                            consumer
//	--------                                            --------
//	size, meta, err := c.Put(ctx, edge, key, value)
//	     \__ meta ... over the control plane ... meta __/
//	                                                    v, err := c.Get(ctx, edge, key, meta)
//	                                                    err = v.Decode(&value)
//	                                                    v.Release()
//
// It is the contract of vLLM-Omni's OmniConnectorBase (put, get, cleanup,
// health, close) in Go. A [Connector] does what is the same for all of them:
// keys, encoding, small values in the metadata, counters, deadlines. A
// [Transport] moves bytes, and is what an implementation writes; a [Registry]
// knows the [Type]s that a program can open. connectortest holds the suite that
// every transport passes.
//
// # What a transport promises
//
//   - A value is got at most once: a successful Get consumes it. Values that were
//     put for one edge are not seen on another, unless a transport says so.
//   - What is got is what was put, whole, or an error; never a part.
//   - Get does not wait. Nothing under the key is [ErrNotFound], and it is
//     told apart from a failure. [Connector.Await] waits, for as long as its context
//     lasts.
//   - A key that is in use is replaced by the next Put, as in vLLM-Omni.
//   - What a [Peeker] looks at stays, for one Get.
//   - Cleanup releases values that were not got, by exactly their key, and
//     Close reclaims all that this connector put and nobody got. Neither touches
//     what somebody else put.
//   - A process that dies leaves nothing behind for good; each transport says when
//     it is reclaimed. What is put to last ([Options].Lasting) stays all the same.
//
// # Copies
//
// A value is encoded straight into the transport's memory when its serializer
// knows the size beforehand ([codec.Sizer]); what is got lies where the transport
// has it, if that can be read in place, until Release.
//
// # Trust
//
// Keys, metadata and payloads come from other processes. A key is checked before
// it names anything ([CheckKey]); metadata is read field by field; decoding is
// as strict as the serializer. Nothing is ever unpickled.
//
// # Concurrency
//
// All methods of a Connector may be called from any goroutine. A [Value] belongs to
// whoever got it.
package connector
