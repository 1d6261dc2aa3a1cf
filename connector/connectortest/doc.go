// Package connectortest is the suite that every transport of package connector passes. A
// transport's own tests call Run with a function that opens its two ends:
//
//	func TestTransport(t *testing.T) {
//		connectortest.Run(t, connectortest.Ends{Open: func(t *testing.T) (put, get connector.Transport) { ... }})
//	}
//
// The ends may be one transport, two in one process, or two in two processes: a [Relay] calls a
// transport of another process, which runs [Serve]. The suite kills ends that are a [Child], if
// Ends.Next opens another in their place.
package connectortest
