// Package connectortest is the suite that every transport of package connector
// passes. A transport's own tests call Run with a way to open its two ends:
//
//	func TestTransport(t *testing.T) {
//		connectortest.Run(t, connectortest.Ends{Open: func(t *testing.T) (put, get connector.Transport) { ... }})
//	}
//
// The ends may be one transport, two in one process, or two in two processes: a
// [Relay] is a transport that another process has, and gives to [Serve]. A [Child] is one
// that may be killed: the suite does so where Ends.Next opens another in its place.
package connectortest
