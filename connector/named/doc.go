// Package named hands single values over by a name alone, for what goes beside a
// request: whoever writes a value tells the name, and whoever has that reads it, and
// takes it away with that or leaves it for others.
//
//	writer                                   reader
//	------                                   ------
//	name, err := values.Write(ctx, "r1", v)
//	    \___________ name ... in a message ... name _____________/
//	                                         v, err := values.Read(ctx, name, true)
//
// It works over every [connector.Transport] that finds values by their key, such as
// a ring, or segments of generation 2. Reading without taking also needs a
// [connector.Peeker], which both are, and a host's exchange is not.
//
// The values go as those of a connector go: with the transport's Close, with Cleanup,
// or as the transport says when a process has died. A name contains the id of the
// request, so that a Cleanup of the request by a connector over the same transport
// reclaims its value too.
//
// All methods may be called from any goroutine.
package named
