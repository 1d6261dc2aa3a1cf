// Package messages defines what travels on the edges of a bus: the handle of
// an object in a store, the delivery that carries it, and their wire forms.
//
// # In process and on the wire
//
// Inside one process a [Delivery] is a plain struct that is passed by value;
// nobody encodes it. Between processes it is the protobuf message
// omnibus.v1.Delivery of omnibus.proto. [ToProto] and [FromProto] translate;
// [Delivery.AppendBinary] and [ParseDelivery] add the encoding. The mapping
// loses nothing:
//
//	Delivery           omnibus.v1.Delivery      checked in both directions
//	Request            request (fixed64)
//	Epoch              epoch
//	Seq                sequence
//	Dropped            dropped
//	Deadline           deadline_unix_nanos      not negative
//	Handle             payload.handle           Gen not 0; excludes Inline
//	Inline             payload.inline           at most MaxInlineBytes
//	Codec              inline_codec             0 without Inline
//	Attempt            attempt
//	Edge               edge                     1 to MaxEdgeBytes
//	Key                key                      at most MaxKeyBytes
//	EOS                end_of_stream            set, when there is no payload
//	Attrs              attributes               MaxAttrs, MaxAttrKeyBytes, MaxAttrValueBytes
//	Trace              trace                    both ids set, or no trace at all
//
// A nil Inline means that there is no inline payload; an empty one that is not
// nil is a payload of no bytes. An empty Attrs comes back as nil. All text is
// UTF-8.
//
// A handle has two wire forms that say the same: the message
// omnibus.v1.Handle inside a delivery, and 40 bytes of little endian fields
// where a fixed length is wanted ([Handle.MarshalBinary]).
//
// The schema also holds the control messages of a link between two nodes:
// Hello, Welcome, Open, Accept, Credit, Release, Abort, End and Stall. This
// package converts deliveries only; a transport uses the generated types of
// messages/omnibuspb for the rest.
//
// # Trust
//
// Bytes from outside never panic and never make the decoder allocate more than
// a small multiple of [MaxDeliveryBytes]. What passes is well formed, no more:
// whether a handle names anything is for its store to say, and whether an edge
// exists is for the bus. Attributes and keys may hold any text, so whoever
// prints them quotes them.
//
// # Ordering and concurrency
//
// Messages keep no order; the sequence number of a delivery says where in its
// stream it belongs. All functions may be called from any goroutine. Nobody
// may change Inline or Attrs once a delivery has been sent: a fan-out shares
// both between its copies.
//
// # After a crash
//
// The package keeps no state, so a crash leaves nothing behind.
package messages
